// Package http2 has the parts of HTTP/2 (RFC 9113) that the front handles itself.
package http2

import "encoding/binary"

const (
	prefaceBytes = 24 // the first bytes of a caller
	headerBytes  = 9

	Data         byte = 0x0
	Headers      byte = 0x1
	Reset        byte = 0x3
	goAway       byte = 0x7
	windowUpdate byte = 0x8
	Continuation byte = 0x9

	EndStream  byte = 0x1
	EndHeaders byte = 0x4
	Padded     byte = 0x8

	NoError         uint32 = 0x0
	EnhanceYourCalm uint32 = 0xb
)

// Frame is the header of a frame.
type Frame struct {
	Length  int
	Kind    byte
	Flags   byte
	Stream  uint32
	Padding int // bytes of the payload that are not data, only known of frames of data
}

// Scanner follows the frames in one direction of a connection, however reads and writes split them. grpc-go interprets the
// frames; the scanner only reads their headers, and the length of the padding of data.
type Scanner struct {
	Current  Frame
	rest     int                   // bytes of the current frame's payload that are to come
	header   [headerBytes + 1]byte // the last byte of data with padding only
	gathered int                   // bytes of the next frame's header that have come
}

// NewScanner returns the scanner of the bytes from a caller, which begin with the preface.
func NewScanner() Scanner {
	return Scanner{rest: prefaceBytes}
}

// Next goes through some of the bytes that follow and returns how many. It reports whether a frame began, and whether the current one ended.
func (scanner *Scanner) Next(data []byte) (used int, began bool, ended bool) {
	if scanner.rest > 0 {
		used = min(scanner.rest, len(data))
		scanner.rest -= used
		return used, false, scanner.rest == 0
	}
	size := headerBytes
	if scanner.gathered == headerBytes {
		size++
	}
	used = copy(scanner.header[scanner.gathered:size], data)
	scanner.gathered += used
	if scanner.gathered < size {
		return used, false, false
	}
	header := scanner.header[:]
	frame := Frame{
		Length: int(binary.BigEndian.Uint32(header) >> 8),
		Kind:   header[3],
		Flags:  header[4],
		Stream: binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	if frame.Kind == Data && frame.Flags&Padded != 0 && frame.Length > 0 {
		if size == headerBytes {
			return used, false, false // the next byte is the length of the padding
		}
		frame.Padding = min(1+int(header[headerBytes]), frame.Length)
	}
	scanner.Current, scanner.gathered, scanner.rest = frame, 0, frame.Length-(size-headerBytes)
	return used, true, scanner.rest == 0
}

// Rest returns how many bytes of the current frame's payload have yet to arrive.
func (scanner *Scanner) Rest() int {
	return scanner.rest
}

// Skip notes bytes of the current frame's payload that did not come through Next, fewer than Rest.
func (scanner *Scanner) Skip(count int) {
	scanner.rest -= count
}

// IsBetweenFrames reports whether the next byte is a frame's first.
func (scanner *Scanner) IsBetweenFrames() bool {
	return scanner.rest == 0 && scanner.gathered == 0
}

// newFrame returns a frame.
func newFrame(kind byte, stream uint32, payload ...uint32) []byte {
	frame := []byte{0, 0, byte(4 * len(payload)), kind, 0}
	frame = binary.BigEndian.AppendUint32(frame, stream)
	for _, part := range payload {
		frame = binary.BigEndian.AppendUint32(frame, part)
	}
	return frame
}

// NewGoAway returns the frame that ends a connection. Calls on streams after `last` were not processed, so the caller may repeat them elsewhere.
func NewGoAway(last uint32, code uint32) []byte {
	return newFrame(goAway, 0, last, code)
}

// NewStreamError returns a frame that makes grpc-go reset the stream: a window update with an increment of 0 (RFC 9113 §6.9).
func NewStreamError(stream uint32) []byte {
	return newFrame(windowUpdate, stream, 0)
}
