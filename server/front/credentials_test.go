package main

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
)

// A credential that has ended while the server was asked about it does not keep the handle that the answer brings.
func TestAnAnswerThatComesTooLateIsForgotten(t *testing.T) {
	calls, server := pipe(t)
	connections := newConnections(limitsOfTests())
	connections.calls = calls
	connection := connections.admitFrom(t, "10.0.0.1")
	connections.mutex.Lock()
	credential, _ := connection.use([sha256.Size]byte{1})
	credential.end(refusals.Unauthenticated("the connection has ended"))
	connections.unlock()
	credential.release() // its call has reached its deadline
	connections.mutex.Lock()
	credential.accept(7, 60_000)
	connections.unlock()
	if len(connections.handles) > 0 || credential.timer != nil {
		t.Error("the handle is kept")
	}
	frame := receive(t, server)
	if frame[8] != link.Forget || binary.LittleEndian.Uint32(frame[4:]) != 7 {
		t.Errorf("the server is not told to forget the handle: %v", frame)
	}
}
