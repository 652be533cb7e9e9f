package scheduler

// level is everything that waits at one priority.
type level struct {
	users []userLines
	turn  int
	// spent counts the users that have nothing left.
	spent int
}

// userLines is what one user waits for at one priority.
type userLines struct {
	// lines that have nothing left are nil; spent counts them.
	lines []*line
	turn  int
	spent int
	// isSpent: all are, and the level counts it.
	isSpent bool
}

// addUser uses again what an earlier level had.
func (lv *level) addUser(l *line) {
	if n := len(lv.users); n < cap(lv.users) {
		lv.users = lv.users[:n+1]
		u := &lv.users[n]
		*u = userLines{lines: append(u.lines[:0], l)}
		return
	}
	lv.users = append(lv.users, userLines{lines: []*line{l}})
}

// take leaves the users that have nothing left in the list until they are half of it: in a
// long backlog that is most of them, one by one.
func (lv *level) take() *line {
	for lv.spent < len(lv.users) {
		if lv.turn >= len(lv.users) {
			lv.turn = 0
		}
		u := &lv.users[lv.turn]
		if l := u.take(); l != nil {
			return l
		}
		lv.turn++
		if !u.isSpent {
			u.isSpent = true
			if lv.spent++; 2*lv.spent > len(lv.users) {
				lv.compact()
			}
		}
	}
	return nil
}

// compact takes out the users that have nothing left; their storage is kept for the next level.
func (lv *level) compact() {
	kept, turn := 0, 0
	for i := range lv.users {
		if lv.users[i].isSpent {
			continue
		}
		if i < lv.turn {
			turn++
		}
		lv.users[kept], lv.users[i] = lv.users[i], lv.users[kept]
		kept++
	}
	lv.users, lv.turn, lv.spent = lv.users[:kept], turn, 0
}

func (u *userLines) take() *line {
	for u.spent < len(u.lines) {
		if u.turn >= len(u.lines) {
			u.turn = 0
		}
		l := u.lines[u.turn]
		if l != nil && len(l.rest()) > 0 {
			return l
		}
		if l != nil {
			u.lines[u.turn] = nil
			u.spent++
		}
		u.turn++
		if 2*u.spent > len(u.lines) {
			u.compact()
		}
	}
	return nil
}

// compact takes out the lines that have nothing left.
func (u *userLines) compact() {
	kept, turn := u.lines[:0], 0
	for i, l := range u.lines {
		if l == nil {
			continue
		}
		if i < u.turn {
			turn++
		}
		kept = append(kept, l)
	}
	u.lines, u.turn, u.spent = kept, turn, 0
}
