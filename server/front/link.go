package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// A frame is a header (length of the content, number of the call, kind) and its content; server/gavel_server/front/link.py is the
// other end, and says what each kind is for.
const headerBytes = 4 + 4 + 1

// Kinds of the server's frames.
const (
	response byte = 0
	refused  byte = 1 // link.py: STATUS
	serve    byte = 2
	stop     byte = 3
	ping     byte = 4
)

// Kinds of the front's frames that are no call.
const (
	pong    byte = 253
	bound   byte = 254
	unbound byte = 255
)

// What is gathered to be written at once; of a long queue, what is written is no longer counted as unsent.
const writeBytes = 1 << 16

// One read brings many small frames.
const readBytes = 1 << 18

// frameOf returns a whole frame, for those that are no call.
func frameOf(kind byte, number uint32, content string) []byte {
	frame := append(make([]byte, headerBytes, headerBytes+len(content)), content...)
	putHeader(frame, kind, number)
	return frame
}

// putHeader fills in the header of a frame whose content is in its place.
func putHeader(frame []byte, kind byte, number uint32) {
	binary.LittleEndian.PutUint32(frame[0:], uint32(len(frame)-headerBytes))
	binary.LittleEndian.PutUint32(frame[4:], number)
	frame[8] = kind
}

// link is the front's end of the socket pair. Frames that are sent while a write is under way go out together with the next one.
type link struct {
	end    net.Conn
	wake   chan struct{}
	mutex  sync.Mutex
	queue  [][]byte // frames that wait for the writer
	unsent int      // bytes of frames that the kernel has not taken yet
}

func newLink(end net.Conn) *link {
	return &link{end: end, wake: make(chan struct{}, 1)}
}

// send queues a frame, which is the link's from then on. It never waits.
func (link *link) send(frame []byte) {
	link.mutex.Lock()
	link.queue = append(link.queue, frame)
	link.unsent += len(frame)
	first := len(link.queue) == 1
	link.mutex.Unlock()
	if first {
		select {
		case link.wake <- struct{}{}:
		default:
		}
	}
}

// unsentBytes says how much waits for the server to read.
func (link *link) unsentBytes() int {
	link.mutex.Lock()
	defer link.mutex.Unlock()
	return link.unsent
}

// write sends what is queued, in order, until the other end has gone; `read` notices that too, and ends the process.
func (link *link) write() {
	var spare [][]byte
	gathered := make([]byte, 0, writeBytes)
	for range link.wake {
		link.mutex.Lock()
		frames := link.queue
		link.queue = spare[:0]
		link.mutex.Unlock()
		for place, frame := range frames {
			frames[place] = nil
			if len(gathered)+len(frame) > writeBytes {
				if !link.writeOut(gathered) {
					return
				}
				gathered = gathered[:0]
			}
			if len(frame) <= writeBytes {
				gathered = append(gathered, frame...)
			} else if !link.writeOut(frame) {
				return
			}
		}
		if !link.writeOut(gathered) {
			return
		}
		gathered = gathered[:0]
		spare = frames
	}
}

// writeOut writes some bytes, and says whether the other end is still there.
func (link *link) writeOut(data []byte) bool {
	if len(data) == 0 {
		return true
	}
	_, err := link.end.Write(data)
	link.mutex.Lock()
	link.unsent -= len(data)
	link.mutex.Unlock()
	return err == nil
}

// read hands on every frame, in order, until the other end hangs up. `received` must not wait; the content is its own.
func (link *link) read(received func(kind byte, number uint32, content []byte)) {
	reader := bufio.NewReaderSize(link.end, readBytes)
	var header [headerBytes]byte
	for {
		if _, err := io.ReadFull(reader, header[:]); err != nil {
			return
		}
		content := make([]byte, binary.LittleEndian.Uint32(header[0:]))
		if _, err := io.ReadFull(reader, content); err != nil {
			return
		}
		received(header[8], binary.LittleEndian.Uint32(header[4:]), content)
	}
}
