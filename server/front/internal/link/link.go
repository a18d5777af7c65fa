// Package link is the front's side of the link to the server: a socket pair with frames both ways.
package link

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// The most bytes gathered into one write. A long queue takes several writes, so `unsent` falls as it is written.
const writeBytes = 1 << 16

// Size of the read buffer, which holds many small frames.
const readBytes = 1 << 18

// Link is the front's end of the socket pair. Frames that are sent while a write is under way go out together with the next write.
type Link struct {
	end    net.Conn
	wake   chan struct{}
	mutex  sync.Mutex
	queue  [][]byte // frames for the writer
	unsent int      // bytes of frames that the kernel has not taken yet
}

// New returns the front's end of a link.
func New(end net.Conn) *Link {
	return &Link{end: end, wake: make(chan struct{}, 1)}
}

// Send queues a frame, which the link owns from then on. It never waits.
func (link *Link) Send(frame []byte) {
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

// UnsentBytes returns how many bytes the server has yet to read.
func (link *Link) UnsentBytes() int {
	link.mutex.Lock()
	defer link.mutex.Unlock()
	return link.unsent
}

// Write sends queued frames, in order, until the other end has gone; read notices that too, and ends the process.
func (link *Link) Write() {
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

// writeOut writes some bytes, and reports whether the other end is still there.
func (link *Link) writeOut(data []byte) bool {
	if len(data) == 0 {
		return true
	}
	_, err := link.end.Write(data)
	link.mutex.Lock()
	link.unsent -= len(data)
	link.mutex.Unlock()
	return err == nil
}

// Read calls handle with every frame, in order, until the other end closes the socket. handle must not wait, and owns the content.
func (link *Link) Read(handle func(kind byte, number uint32, content []byte)) {
	reader := bufio.NewReaderSize(link.end, readBytes)
	var header [HeaderBytes]byte
	for {
		if _, err := io.ReadFull(reader, header[:]); err != nil {
			return
		}
		content := make([]byte, binary.LittleEndian.Uint32(header[0:]))
		if _, err := io.ReadFull(reader, content); err != nil {
			return
		}
		handle(header[8], binary.LittleEndian.Uint32(header[4:]), content)
	}
}
