package main

import "encoding/binary"

// The parts of HTTP/2 (RFC 9113) that the front looks at itself.
const (
	http2PrefaceBytes = 24 // the first bytes of a caller
	http2HeaderBytes  = 9

	frameData         byte = 0x0
	frameHeaders      byte = 0x1
	frameReset        byte = 0x3
	frameGoAway       byte = 0x7
	frameWindowUpdate byte = 0x8
	frameContinuation byte = 0x9

	flagEndStream  byte = 0x1
	flagEndHeaders byte = 0x4

	codeNone            uint32 = 0x0
	codeEnhanceYourCalm uint32 = 0xb
)

// http2Frame is the header of a frame.
type http2Frame struct {
	length int
	kind   byte
	flags  byte
	stream uint32
}

// frameScanner follows the frames in one direction of a connection, however reads and writes split them. grpc-go interprets the
// frames; the scanner only reads their headers.
type frameScanner struct {
	current  http2Frame
	rest     int // bytes of the current frame's payload that are to come
	header   [http2HeaderBytes]byte
	gathered int // bytes of the next frame's header that have come
}

// next goes through some of the bytes that follow and returns how many. It reports whether a frame began, and whether the current one ended.
func (scanner *frameScanner) next(data []byte) (used int, began bool, ended bool) {
	if scanner.rest > 0 {
		used = min(scanner.rest, len(data))
		scanner.rest -= used
		return used, false, scanner.rest == 0
	}
	used = copy(scanner.header[scanner.gathered:], data)
	scanner.gathered += used
	if scanner.gathered < http2HeaderBytes {
		return used, false, false
	}
	scanner.gathered = 0
	header := scanner.header[:]
	scanner.current = http2Frame{
		length: int(binary.BigEndian.Uint32(header) >> 8),
		kind:   header[3],
		flags:  header[4],
		stream: binary.BigEndian.Uint32(header[5:]) &^ (1 << 31),
	}
	scanner.rest = scanner.current.length
	return used, true, scanner.rest == 0
}

// isBetweenFrames reports whether the next byte is a frame's first.
func (scanner *frameScanner) isBetweenFrames() bool {
	return scanner.rest == 0 && scanner.gathered == 0
}

// newHTTP2Frame returns a frame.
func newHTTP2Frame(kind byte, stream uint32, payload ...uint32) []byte {
	frame := []byte{0, 0, byte(4 * len(payload)), kind, 0}
	frame = binary.BigEndian.AppendUint32(frame, stream)
	for _, part := range payload {
		frame = binary.BigEndian.AppendUint32(frame, part)
	}
	return frame
}

// newGoAway returns the frame that ends a connection. Calls on streams after `last` were not processed, so the caller may repeat them elsewhere.
func newGoAway(last uint32, code uint32) []byte {
	return newHTTP2Frame(frameGoAway, 0, last, code)
}

// newStreamError returns a frame that makes grpc-go reset the stream: a window update with an increment of 0 (RFC 9113 §6.9).
func newStreamError(stream uint32) []byte {
	return newHTTP2Frame(frameWindowUpdate, stream, 0)
}
