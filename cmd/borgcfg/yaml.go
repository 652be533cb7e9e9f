package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// yamlOf turns JSON into block YAML, names in the same order. It does not read
// the JSON as YAML, which has no room for some characters.
func yamlOf(b []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	n, err := yamlNode(dec)
	if err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("print as YAML: %w", err)
	}
	return visibleYAML(out.Bytes()), nil
}

// visibleYAML escapes what cannot be seen and the library takes for text. Texts
// that hold it stand in double quotes.
func visibleYAML(b []byte) []byte {
	if bytes.IndexFunc(b, unseen) < 0 {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case !unseen(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			out = fmt.Appendf(out, `\U%08x`, r)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// yamlNode converts the next JSON value.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		// The names of an object come as values of their own.
		for dec.More() {
			item, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, item)
		}
		if len(n.Content) == 0 {
			n.Style = yaml.FlowStyle
		}
		_, err := dec.Token()
		return n, err
	case string:
		return yamlText(t), nil
	case json.Number:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(t)}, nil
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
	}
}

// yamlText is a text, as a block where that reads better.
func yamlText(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	n.SetString(s)
	plain := strings.IndexFunc(s, func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r <= 0x9f }) < 0
	if n.Style == yaml.LiteralStyle && (!plain || strings.HasPrefix(s, " ") || strings.HasPrefix(s, "\n")) {
		n.Style = yaml.DoubleQuotedStyle
	}
	if strings.IndexFunc(s, unseen) >= 0 {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
