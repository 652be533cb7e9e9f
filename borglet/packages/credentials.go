package packages

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// maxCredentialsBytes bounds a file of credentials.
const maxCredentialsBytes = 1 << 20

// Credentials are who this machine is to registries, in a file that is looked at anew with
// each login. Empty: the configuration of docker of who runs this program, if there is
// one.
type Credentials string

// ReadCredentials says whether a file can be used: it has the form of docker's
// configuration, and nobody but its owner may read it.
func ReadCredentials(path string) (Credentials, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q: want an absolute path", path)
	}
	_, err := Credentials(path).read()
	return Credentials(path), err
}

// credential is what the file has for one registry. It is never put into words.
type credential struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func (c Credentials) read() (map[string]credential, error) {
	f, err := os.Open(string(c))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", c)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be read or changed by others (its mode is %04o): chmod 600 %[1]s", c, info.Mode().Perm())
	case info.Size() > maxCredentialsBytes:
		return nil, fmt.Errorf("%s has %d bytes; at most %d", c, info.Size(), maxCredentialsBytes)
	}
	var config struct {
		Auths map[string]credential `json:"auths"`
	}
	// An error of the decoder would show what it stumbled over.
	if json.NewDecoder(f).Decode(&config) != nil || len(config.Auths) == 0 {
		return nil, fmt.Errorf(`%s: want the form of docker's configuration: {"auths": {"HOST": {"username": "...", "password": "..."}}}`, c)
	}
	for host, one := range config.Auths {
		if _, err := one.config(); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", c, host, err)
		}
	}
	return config.Auths, nil
}

func (c credential) config() (authn.AuthConfig, error) {
	if c.Auth != "" {
		text, err := base64.StdEncoding.DecodeString(c.Auth)
		user, password, found := strings.Cut(string(text), ":")
		if err != nil || !found {
			return authn.AuthConfig{}, errors.New("its auth is not the base64 of user:password")
		}
		c.Username, c.Password = user, password
	}
	if c.Username == "" && c.IdentityToken == "" && c.RegistryToken == "" {
		return authn.AuthConfig{}, errors.New("it has no username, no auth and no token; helpers of docker are not asked")
	}
	return authn.AuthConfig{Username: c.Username, Password: c.Password, IdentityToken: c.IdentityToken, RegistryToken: c.RegistryToken}, nil
}

// Resolve finds those of a registry: authn.Keychain.
func (c Credentials) Resolve(of authn.Resource) (authn.Authenticator, error) {
	if c == "" {
		return authn.DefaultKeychain.Resolve(of)
	}
	all, err := c.read()
	if err != nil {
		return nil, err
	}
	who, err := resolve(all, of)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	return who, nil
}
