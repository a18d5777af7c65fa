package main

import (
	"bytes"
	"testing"
)

// The scanner sees the same frames however the bytes are cut, and when each begins and ends.
func TestFramesAreSeenHoweverTheBytesAreCut(t *testing.T) {
	sent := bytes.Repeat([]byte{'p'}, http2PrefaceBytes)
	expected := []http2Frame{
		{length: 70_000, kind: frameData, flags: flagEndStream, stream: 1},
		{length: 0, kind: frameHeaders, flags: flagEndHeaders, stream: 1<<31 - 1},
		{length: 4, kind: frameReset, stream: 3},
	}
	for _, frame := range expected {
		header := newHTTP2Frame(frame.kind, frame.stream)
		header[0], header[1], header[2], header[4] = byte(frame.length>>16), byte(frame.length>>8), byte(frame.length), frame.flags
		sent = append(append(sent, header...), make([]byte, frame.length)...)
	}
	for _, size := range []int{1, 8, 9, 10, 1000, len(sent)} {
		scanner := frameScanner{rest: http2PrefaceBytes}
		var seen []http2Frame
		ends := 0
		for rest := sent; len(rest) > 0; {
			used, began, ended := scanner.next(rest[:min(size, len(rest))])
			rest = rest[used:]
			if began {
				seen = append(seen, scanner.current)
			}
			if ended {
				ends++
			}
		}
		if len(seen) != len(expected) || ends != len(expected)+1 || !scanner.isBetweenFrames() {
			t.Fatalf("in pieces of %d, %v are seen, and %d ends", size, seen, ends)
		}
		for index := range seen {
			if seen[index] != expected[index] {
				t.Errorf("in pieces of %d, %v is seen as %v", size, expected[index], seen[index])
			}
		}
	}
}
