package scheduler

// Devices count in a score as what they cannot be used for any more: GPUs are
// dear, and a machine whose CPU has run out strands them as surely as CPU
// strands memory.
const (
	// strandedShift: devices stranded weigh four times as much as CPU or memory.
	strandedShift = 6
	// maxDevicePoints bounds the part of devices in a score.
	maxDevicePoints = 1 << 15
)

// devicePoints is the part of a score that is for devices: less for what would be
// stranded, and, for a share, less for what would be left of the device that it
// comes to lie on. What is free of CPU and memory, and what the request takes, are
// in fullPoints of the machine.
func (g *grid) devicePoints(c *class, i int32, freeCPU, freeMem, cpu, mem int64) (points int64) {
	usable := min(freeCPU, freeMem)
	usableAfter := max(min(freeCPU-cpu, freeMem-mem), 0)
	for d := range g.devices {
		s := &g.singles[d][i]
		if s.capacity == 0 {
			continue
		}
		free := g.deviceFree[c.view][d][i]
		left := free
		for k := range c.devices {
			if need := &c.devices[k]; need.column == d {
				left -= need.milli
				points -= s.rest(need) * fullPoints / wholeDevice
			}
		}
		before := max(free*fullPoints/s.capacity-usable, 0)
		after := max(left*fullPoints/s.capacity-usableAfter, 0)
		points += (before*before - after*after) >> strandedShift
	}
	return min(max(points, -maxDevicePoints), maxDevicePoints)
}

// rest is what would be left of the one device that a share comes to lie on;
// nothing of whole ones.
func (s *single) rest(need *deviceNeed) int64 {
	if need.count > 0 {
		return 0
	}
	for _, part := range s.parts {
		if int64(part) >= need.milli {
			return int64(part) - need.milli
		}
	}
	return wholeDevice - need.milli
}
