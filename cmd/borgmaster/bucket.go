package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"borg/checkpoint"
	"borg/cli"
)

// bucketPartBytes is the size of the parts of a large file; one is held in memory.
const bucketPartBytes = 16 << 20

// bucket is a destination in a store that speaks the protocol of S3. What is put
// there appears when it is whole.
type bucket struct {
	client *minio.Client
	name   string
	// Of each object's name: the prefix that was asked for, and the cell.
	prefix string
}

var _ checkpoint.Destination = (*bucket)(nil)

// newBucket takes s3://BUCKET/PREFIX?endpoint=URL&region=REGION. Who asks is told
// by $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY, or by the file of AWS's tools.
func newBucket(u *url.URL, cell string) (checkpoint.Destination, error) {
	query := u.Query()
	endpoint := &url.URL{Scheme: "https", Host: "s3.amazonaws.com"}
	for key, values := range query {
		switch key {
		case "endpoint":
			e, err := url.Parse(values[0])
			if err != nil || e.Host == "" || e.Path != "" || e.Scheme != "http" && e.Scheme != "https" {
				return nil, cli.Errorf(cli.Usage, "--push: endpoint %q: want https://HOST:PORT", values[0])
			}
			endpoint = e
		case "region":
		default:
			return nil, cli.Errorf(cli.Usage, "--push: %q is not known; s3://BUCKET/PREFIX takes endpoint and region", key).Hint("s3://BUCKET/PREFIX?endpoint=https://HOST:PORT&region=REGION")
		}
	}
	if u.User != nil {
		return nil, cli.Errorf(cli.Usage, "--push: a secret does not belong into a command line; give it as $AWS_ACCESS_KEY_ID and $AWS_SECRET_ACCESS_KEY")
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:  credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}),
		Secure: endpoint.Scheme == "https", Region: query.Get("region"), MaxRetries: 3,
	})
	if err != nil {
		return nil, cli.Errorf(cli.Usage, "--push %s: %w", u.Redacted(), err)
	}
	return &bucket{client: client, name: u.Host, prefix: strings.TrimPrefix(path.Join("/", u.Path, cell), "/")}, nil
}

// String implements checkpoint.Destination.
func (b *bucket) String() string {
	return fmt.Sprintf("s3://%s at %s", path.Join(b.name, b.prefix), b.client.EndpointURL().Host)
}

// Put implements checkpoint.Destination.
func (b *bucket) Put(ctx context.Context, name string, bytes int64, r io.Reader) error {
	key := path.Join(b.prefix, name)
	_, err := b.client.PutObject(ctx, b.name, key, r, bytes, minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: bucketPartBytes, NumThreads: 1,
	})
	if err != nil {
		return fmt.Errorf("put %s into bucket %s: %w", key, b.name, err)
	}
	return nil
}
