package packages

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
)

// login is who somebody is to registries, as a secret says: like docker's configuration,
// by registries, or a user and a password for those that the machine asks. Nothing of it
// is put into words.
type login struct {
	auths map[string]credential
	any   *credential
}

var errLogin = errors.New(`the secret that it is brought with is of no use: want the form of docker's configuration, {"auths": {"HOST": {"username": "...", "password": "..."}}}, or {"username": "...", "password": "..."}`)

func parseLogin(value []byte) (*login, error) {
	var said struct {
		Auths map[string]credential `json:"auths"`
		credential
	}
	// An error of the decoder would show what it stumbled over.
	if len(value) > maxCredentialsBytes || json.Unmarshal(value, &said) != nil {
		return nil, errLogin
	}
	l := &login{auths: said.Auths}
	if len(said.Auths) == 0 {
		l.any = &said.credential
		if _, err := l.any.config(); err != nil {
			return nil, errLogin
		}
	}
	for _, one := range l.auths {
		if _, err := one.config(); err != nil {
			return nil, errLogin
		}
	}
	return l, nil
}

// Format implements fmt.Formatter for all verbs.
func (l *login) Format(f fmt.State, _ rune) { fmt.Fprint(f, "login of a secret") }

// Resolve finds who is shown to a registry: authn.Keychain.
func (l *login) Resolve(of authn.Resource) (authn.Authenticator, error) {
	if l.any != nil {
		config, err := l.any.config()
		return authn.FromConfig(config), err
	}
	return resolve(l.auths, of)
}

// resolve finds what a configuration has for a registry.
func resolve(all map[string]credential, of authn.Resource) (authn.Authenticator, error) {
	for _, name := range []string{of.String(), of.RegistryStr(), "https://" + of.RegistryStr()} {
		if one, has := all[name]; has {
			config, err := one.config()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return authn.FromConfig(config), nil
		}
	}
	return authn.Anonymous, nil
}
