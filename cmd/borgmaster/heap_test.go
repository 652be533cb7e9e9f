package main

import (
	"testing"
	"time"
)

// TestHeapRoom: a small heap may grow by a fixed amount, a large one as the runtime has
// it, and none without bound.
func TestHeapRoom(t *testing.T) {
	for _, x := range []struct {
		live, room uint64
		want       int
	}{
		{0, heapRoom, mostHeapPercent},
		{1 << 20, heapRoom, mostHeapPercent},
		{16 << 20, heapRoom, 400},
		{32 << 20, heapRoom, 200},
		{64 << 20, mostHeapRoom, 800},
		{heapRoom, heapRoom, heapPercent},
		{2 << 30, mostHeapRoom, heapPercent},
	} {
		if got := gcPercent(x.live, x.room); got != x.want {
			t.Errorf("of a heap of %d MiB with %d MiB of room %d per cent, want %d", x.live>>20, x.room>>20, got, x.want)
		}
	}
}

// TestHeapRoomInARush: the room is what is allocated in ten seconds, up to its bound, and
// shrinks when that is over.
func TestHeapRoomInARush(t *testing.T) {
	if got, want := nextRoom(1<<30, heapRoom, 40<<20), uint64(200<<20); got != want {
		t.Errorf("the room is %d MiB for 20 MiB a second, want %d", got>>20, want>>20)
	}
	room := nextRoom(1<<30, heapRoom, 1<<30)
	if room != mostHeapRoom {
		t.Errorf("the room is %d MiB in a rush, want %d", room>>20, mostHeapRoom>>20)
	}
	if got := nextRoom(1<<30, room, 0); got >= room || got < room/2 {
		t.Errorf("the room is %d MiB when a rush is just over, was %d", got>>20, room>>20)
	}
	for range 20 {
		room = nextRoom(1<<30, room, 0)
	}
	if room != heapRoom {
		t.Errorf("the room is %d MiB at rest, want %d", room>>20, heapRoom>>20)
	}
}

// TestHeapRoomOfASmallCell: whoever floods a small cell does not get it the room of a large
// one.
func TestHeapRoomOfASmallCell(t *testing.T) {
	for live, want := range map[uint64]uint64{0: heapRoom, 30 << 20: heapRoom, 64 << 20: 128 << 20, 128 << 20: 256 << 20, 256 << 20: mostHeapRoom, 4 << 30: mostHeapRoom} {
		if got := nextRoom(live, heapRoom, 1<<30); got != want {
			t.Errorf("with %d MiB in use the room is %d MiB in a rush, want %d", live>>20, got>>20, want>>20)
		}
	}
}

// TestHeapRoomAfterAnElection: it is what it would be and some more, for a while.
func TestHeapRoomAfterAnElection(t *testing.T) {
	for _, x := range []struct {
		live, room, want uint64
		since            time.Duration
	}{
		{8 << 20, heapRoom, 2 * heapRoom, 0},
		{64 << 20, heapRoom, heapRoom + 128<<20, 0},
		{64 << 20, heapRoom, heapRoom + 128<<20, electionTime - time.Millisecond},
		{64 << 20, heapRoom, heapRoom, electionTime},
		{1 << 30, heapRoom, 1<<30 + electionRoom, 0},
		{1 << 30, mostHeapRoom, mostHeapRoom, time.Hour},
	} {
		if got := roomAfter(x.live, x.room, x.since); got != x.want {
			t.Errorf("%v after an election the room is %d MiB beside %d MiB in use, want %d", x.since, got>>20, x.live>>20, x.want>>20)
		}
	}
}

// TestHeapRoomShrinks: only while the heap is far from the end of the smaller room.
func TestHeapRoomShrinks(t *testing.T) {
	const live = 200 << 20
	for _, x := range []struct {
		heap    uint64
		percent int
		want    bool
	}{
		{live, 100, true},
		{live / 2, 100, true},
		{live + 99<<20, 100, true},
		{live + 101<<20, 100, false},
		{live + 101<<20, 200, true},
		{2 * live, 100, false},
		{3 * live, 100, false},
	} {
		if got := mayShrink(live, x.heap, x.percent); got != x.want {
			t.Errorf("a heap of %d MiB, %d of them in use, may have %d per cent: %v, want %v", x.heap>>20, live>>20, x.percent, got, x.want)
		}
	}
}

// TestLeftOver: a process at rest keeps what it may allocate before the next collection, and
// no more.
func TestLeftOver(t *testing.T) {
	for _, x := range []struct {
		live, heap, free uint64
		want             bool
	}{
		{40 << 20, 110 << 20, 20 << 20, false},
		{40 << 20, 140 << 20, 190 << 20, true},
		{40 << 20, 476 << 20, 0, true},
		{2 << 30, 4 << 30, 64 << 20, false},
		{2 << 30, 1 << 30, 4 << 30, true},
	} {
		if got := leftOver(x.live, x.heap, x.free); got != x.want {
			t.Errorf("%d MiB in use, %d in the heap, %d free: %t, want %t", x.live>>20, x.heap>>20, x.free>>20, got, x.want)
		}
	}
}

// TestOvergrownHeap: what suited a small heap is not kept for one that has become large, and
// no choice of ours is one that would be changed at once.
func TestOvergrownHeap(t *testing.T) {
	if !overgrown(1<<30, 350) {
		t.Error("a heap of 1 GiB may grow by 3.5 GiB")
	}
	for live := uint64(1 << 20); live < 64<<30; live = live*5/4 + 1 {
		for room := uint64(heapRoom); room <= mostHeapRoom; room += heapRoom {
			for _, since := range []time.Duration{0, electionTime} {
				if percent := gcPercent(live, roomAfter(live, min(room, rushRoom(live)), since)); overgrown(live, percent) {
					t.Errorf("of a heap of %d MiB with %d MiB of room, %v after an election, %d per cent are too many", live>>20, room>>20, since, percent)
				}
			}
		}
	}
}
