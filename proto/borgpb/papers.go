package borgpb

// Memory that the contents of a task's secrets and files may take on its machine, each.
const (
	// MaxSecretBytes is the size of the value of a secret.
	MaxSecretBytes = 64 << 10
	// MaxFileBytes is the size of a small file of a user.
	MaxFileBytes = 256 << 10
)

// PaperBytes returns the most memory that the secrets and files of a task take, zero if it
// names none. All secrets are renewed at once, so the old and the new ones lie beside each
// other; files are replaced one after the other. What is in them changes while the task
// runs, so their largest size counts and not the present one.
func (t *TaskSpec) PaperBytes() int64 {
	bytes := int64(len(t.GetSecrets())) * 2 * MaxSecretBytes
	if n := len(t.GetFiles()); n > 0 {
		bytes += int64(n+1) * MaxFileBytes
	}
	return bytes
}
