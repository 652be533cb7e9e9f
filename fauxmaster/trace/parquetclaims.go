package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// A few bytes of a Parquet file can claim gigabytes, which whoever reads it makes room for
// before he finds out. So what it claims is looked at first. Real files stay far below:
// writers close a page at about 1 MiB.
const (
	// One page, unpacked, and the values in it.
	maxPageBytes  = 128 << 20
	maxPageValues = 16 << 20
	// The header of a page, which has the least and the greatest value.
	maxPageHeader = 64 << 10
	// All pages together unpacked, and the values of a column, for each byte of the file.
	maxUnpacked     = 10_000
	maxValuesOfByte = 64
	// The end of a file: the length of its footer, and who it is.
	footerEnd = 8
)

// checkFooter wants the footer to be in the file.
func checkFooter(file io.ReaderAt, size int64) error {
	var end [footerEnd]byte
	if size < footerEnd {
		return fmt.Errorf("it has %d bytes", size)
	}
	if _, err := file.ReadAt(end[:], size-footerEnd); err != nil {
		return fmt.Errorf("read its end: %w", err)
	}
	if footer := int64(binary.LittleEndian.Uint32(end[:])); footer > size-footerEnd {
		return fmt.Errorf("its footer would have %d of its %d bytes", footer, size)
	}
	return nil
}

// pageClaims are those of all pages of a file that was opened.
type pageClaims struct {
	file     io.ReaderAt
	size     int64
	unpacked int64
	unpacker unpacker
}

func (p *pageClaims) check(f *parquet.File) error {
	for _, group := range f.Metadata().RowGroups {
		for i := range group.Columns {
			if err := p.column(&group.Columns[i].MetaData); err != nil {
				return fmt.Errorf("column %d: %w", i, err)
			}
		}
		if group.NumRows > maxValuesOfByte*p.size {
			return fmt.Errorf("%d rows in %d bytes", group.NumRows, p.size)
		}
	}
	return nil
}

// column looks at a chunk of a column, which is read from its dictionary on if it has
// one, and then from its data on.
func (p *pageClaims) column(m *format.ColumnMetaData) error {
	begin := m.DataPageOffset
	if m.DictionaryPageOffset != 0 {
		begin = m.DictionaryPageOffset
	}
	if begin < 0 || m.TotalCompressedSize < 0 || begin > p.size-min(m.TotalCompressedSize, p.size) {
		return fmt.Errorf("it would be %d bytes at %d of a file of %d", m.TotalCompressedSize, begin, p.size)
	}
	end := begin + m.TotalCompressedSize
	err := p.pages(begin, end, m.Codec)
	if err == nil && m.DataPageOffset > begin && m.DataPageOffset < end {
		err = p.pages(m.DataPageOffset, end, m.Codec)
	}
	return err
}

// pages goes from page to page.
func (p *pageClaims) pages(at, end int64, codec format.CompressionCodec) error {
	values := int64(0)
	for at < end {
		header, n, err := p.header(at, end)
		if err != nil {
			return fmt.Errorf("page at %d: %w", at, err)
		}
		held := int64(header.DataPageHeader.V.NumValues) + int64(header.DataPageHeaderV2.V.NumValues) + int64(header.DictionaryPageHeader.V.NumValues)
		packed, unpacked := int64(header.CompressedPageSize), int64(header.UncompressedPageSize)
		at += n + packed
		p.unpacked += unpacked
		values += held
		switch {
		case packed < 0 || at > end:
			return fmt.Errorf("a page of %d bytes goes beyond its column", packed)
		case unpacked < 0 || unpacked > maxPageBytes || p.unpacked > maxUnpacked*p.size:
			return fmt.Errorf("a page would be %d bytes unpacked, all so far %d; at most %d, and %d times the file", unpacked, p.unpacked, maxPageBytes, maxUnpacked)
		case held < 0 || held > maxPageValues || values > maxValuesOfByte*p.size:
			return fmt.Errorf("a page would have %d values, its column so far %d in a file of %d bytes; at most %d, and %d for each byte", held, values, p.size, maxPageValues, maxValuesOfByte)
		}
		// Levels stand before what is packed.
		levels := int64(header.DataPageHeaderV2.V.RepetitionLevelsByteLength) + int64(header.DataPageHeaderV2.V.DefinitionLevelsByteLength)
		if levels < 0 || levels > min(packed, unpacked) {
			return fmt.Errorf("page at %d: its levels would have %d of its %d bytes, and %d unpacked", at-packed, levels, packed, unpacked)
		}
		if packs := header.DataPageHeaderV2.V.IsCompressed; packs.Valid && !packs.V {
			continue
		}
		if err := p.unpacker.check(io.NewSectionReader(p.file, at-packed+levels, packed-levels), unpacked-levels, codec); err != nil {
			return fmt.Errorf("page at %d: %w", at-packed, err)
		}
	}
	return nil
}

// header reads that of the page at an offset, and says how long it is.
func (p *pageClaims) header(at, end int64) (*format.PageHeader, int64, error) {
	data := make([]byte, min(end-at, maxPageHeader))
	if _, err := p.file.ReadAt(data, at); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	var compact thrift.CompactProtocol
	reader, header := compact.NewReaderFromBytes(data), new(format.PageHeader)
	if err := thrift.NewDecoder(reader).Decode(header); err != nil {
		return nil, 0, fmt.Errorf("its header: %w", err)
	}
	return header, int64(reader.BytesRead()), nil
}
