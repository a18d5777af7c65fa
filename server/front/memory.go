package main

import (
	"runtime/debug"
	"runtime/metrics"
)

// Memory that is never touched. Almost nothing outlives a call, so the garbage collector would run for very little garbage; with this ballast it
// waits for about as much.
const ballastBytes = 32 << 20

// The front is quiet in a second in which it took less than quietBytes. Memory beyond residentBytesMax is returned to the system in the first
// quiet second, all other unused memory in the last of quietTicks: a front that is busy every few seconds would only take it again.
const (
	residentBytesMax = 32 << 20
	quietBytes       = 4 << 20
	quietTicks       = 15
)

// memory returns unused memory to the system after a peak. Go's runtime alone takes minutes for that.
type memory struct {
	samples []metrics.Sample
	taken   uint64 // since the start, at the last tick
	quiet   int    // ticks, at most quietTicks
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
	if !isQuiet {
		memory.quiet = 0
		return
	}
	isLast := memory.quiet == quietTicks-1
	memory.quiet = min(memory.quiet+1, quietTicks)
	if isLast || total-released > ballastBytes+residentBytesMax {
		debug.FreeOSMemory()
	}
}
