package main

import (
	"runtime/debug"
	"runtime/metrics"
)

// Memory that is never touched. Almost nothing outlives a call, so the garbage collector would run for very little garbage; with this ballast it
// waits for about as much.
const ballastBytes = 32 << 20

// Memory beyond this is returned to the system as soon as the front is quiet: when it took less than quietBytes within a second.
const (
	residentBytesMax = 32 << 20
	quietBytes       = 4 << 20
)

// memory returns unused memory to the system after a peak. Go's runtime alone takes minutes for that.
type memory struct {
	samples []metrics.Sample
	taken   uint64 // since the start, at the last tick
}

func newMemory() *memory {
	return &memory{samples: []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}}
}

// tick returns unused memory if the front is quiet. Call it once a second.
func (memory *memory) tick() {
	metrics.Read(memory.samples)
	taken, total, released := memory.samples[0].Value.Uint64(), memory.samples[1].Value.Uint64(), memory.samples[2].Value.Uint64()
	isQuiet := taken-memory.taken < quietBytes
	memory.taken = taken
	if isQuiet && total-released > ballastBytes+residentBytesMax {
		debug.FreeOSMemory()
	}
}
