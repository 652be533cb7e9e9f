package borglet

import "testing"

// TestPageAt holds that the path of a check never names another host or port: it
// is the text of whoever submitted the job.
func TestPageAt(t *testing.T) {
	const addr = "10.1.2.3:20001"
	for path, want := range map[string]string{
		"/healthz":               "http://10.1.2.3:20001/healthz",
		"/a/b?c=d&e=%20":         "http://10.1.2.3:20001/a/b?c=d&e=%20",
		"//127.0.0.1:8080/admin": "http://10.1.2.3:20001//127.0.0.1:8080/admin",
		"/@127.0.0.1:8080/":      "http://10.1.2.3:20001/@127.0.0.1:8080/",
		"@127.0.0.1:8080/":       "",
		"http://127.0.0.1:8080/": "",
		":8080/":                 "",
		"":                       "",
		"/a b":                   "http://10.1.2.3:20001/a%20b",
		"/a\r\nHost: other":      "",
	} {
		u, err := pageAt(addr, path)
		switch {
		case want == "" && err == nil:
			t.Errorf("pageAt(%q) = %s, want an error", path, u)
		case want != "" && (err != nil || u.Host != addr || u.String() != want):
			t.Errorf("pageAt(%q) = %v, %v, want %s", path, u, err, want)
		}
	}
}
