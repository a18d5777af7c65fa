package main

import (
	"runtime"
	"runtime/metrics"
	"testing"
)

// A front returns the memory that a busy time has left, however little, once it has been quiet for a while, and not before.
func TestQuietFrontReturnsMemory(t *testing.T) {
	const garbageBytes = 24 << 20
	memory := newMemory()
	memory.tick()
	garbage := make([]byte, garbageBytes)
	for place := range garbage {
		garbage[place] = 1
	}
	runtime.KeepAlive(garbage)
	for range quietTicks {
		memory.tick() // the first one is busy
	}
	before := heldBytes()
	memory.tick()
	if returned := int64(before) - int64(heldBytes()); returned < garbageBytes/2 {
		t.Errorf("the front returned %d bytes of %d", returned, garbageBytes)
	}
}

// heldBytes returns how much memory Go's runtime has taken from the system and not returned.
func heldBytes() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}
