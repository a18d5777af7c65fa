package http2

import (
	"bytes"
	"testing"
)

// The scanner sees the same frames however the bytes are cut, and when each begins and ends.
func TestFramesAreSeenHoweverTheBytesAreCut(t *testing.T) {
	sent := bytes.Repeat([]byte{'p'}, prefaceBytes)
	expected := []Frame{
		{Length: 70_000, Kind: Data, Flags: EndStream, Stream: 1},
		{Length: 0, Kind: Headers, Flags: EndHeaders, Stream: 1<<31 - 1},
		{Length: 4, Kind: Reset, Stream: 3},
		{Length: 12, Kind: Data, Flags: Padded, Stream: 5, Padding: 8},
		{Length: 1, Kind: Data, Flags: Padded, Stream: 5, Padding: 1},
		{Length: 5, Kind: Data, Flags: Padded, Stream: 5, Padding: 5}, // more padding than there is room for
	}
	for _, frame := range expected {
		header := newFrame(frame.Kind, frame.Stream)
		header[0], header[1], header[2], header[4] = byte(frame.Length>>16), byte(frame.Length>>8), byte(frame.Length), frame.Flags
		sent = append(append(sent, header...), make([]byte, frame.Length)...)
		if frame.Padding > 0 {
			sent[len(sent)-frame.Length] = byte(frame.Padding - 1)
		}
	}
	sent[len(sent)-5] = 200
	for _, size := range []int{1, 8, 9, 10, 1000, len(sent)} {
		scanner := NewScanner()
		var seen []Frame
		ends := 0
		for rest := sent; len(rest) > 0; {
			used, began, ended := scanner.Next(rest[:min(size, len(rest))])
			rest = rest[used:]
			if began {
				seen = append(seen, scanner.Current)
			}
			if ended {
				ends++
			}
		}
		if len(seen) != len(expected) || ends != len(expected)+1 || !scanner.IsBetweenFrames() {
			t.Fatalf("in pieces of %d, %v are seen, and %d ends", size, seen, ends)
		}
		for index := range seen {
			if seen[index] != expected[index] {
				t.Errorf("in pieces of %d, %v is seen as %v", size, expected[index], seen[index])
			}
		}
	}
}
