package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"testing"
	"time"

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

// present lets a call of a connection use a credential, and asks the server about it.
func (connections *connections) present(connection *connection, digest byte) *credential {
	connections.mutex.Lock()
	credential, _ := connection.use([sha256.Size]byte{digest})
	connections.unlock()
	go credential.ask(authentication{Peer: connection.peer})
	return credential
}

// hasBegun reports whether the server is being asked about the credential.
func (credential *credential) hasBegun() bool {
	table := credential.connection.table
	table.mutex.Lock()
	defer table.mutex.Unlock()
	return credential.isAsked
}

// hasWaiting reports whether a call or credential waits for its turn.
func (turns *turns) hasWaiting() bool {
	turns.mutex.Lock()
	defer turns.mutex.Unlock()
	return len(turns.addresses) > 0
}

// The server is asked about few credentials of an address at once. One whose calls have gone meanwhile is not asked about.
func TestCredentialsTakeTurns(t *testing.T) {
	calls, server := pipe(t)
	connections := newConnections(limitsOfTests())
	connections.calls = calls
	connections.authentications = newTurns(1, time.Hour)
	connection := connections.admitFrom(t, "10.0.0.1")
	first := connections.present(connection, 1)
	frame := receive(t, server)
	gone := connections.present(connection, 2)
	gone.release()
	<-gone.ready
	if gone.isAsked || len(connection.credentials) != 1 {
		t.Errorf("the server is asked about a credential without calls, and %d are kept", len(connection.credentials))
	}
	last := connections.present(connection, 3)
	number := binary.LittleEndian.Uint32(frame[4:])
	for !connections.authentications.hasWaiting() && !last.hasBegun() {
		time.Sleep(time.Millisecond)
	}
	calls.link.Send(link.NewFrame(link.Forget, 7, "")) // a question about the last one would precede it
	if next := receive(t, server); frame[8] != link.Authenticate || next[8] != link.Forget || last.hasBegun() {
		t.Fatal("the server is asked about two credentials at once")
	}
	server.Write(link.NewFrame(link.Refusal, number, ""))
	<-first.ready
	if frame := receive(t, server); frame[8] != link.Authenticate {
		t.Errorf("the server is not asked about the next credential: %v", frame)
	}
}

// A connection that ends takes no turn for the credentials that wait for one.
func TestCredentialsOfAConnectionThatHasLeft(t *testing.T) {
	connections := newConnections(limitsOfTests())
	connections.authentications = newTurns(1, time.Hour)
	other := connections.admitFrom(t, "10.0.0.1")
	if _, err := connections.authentications.begin(context.Background(), other); err != nil {
		t.Fatal(err)
	}
	connection := connections.admitFrom(t, "10.0.0.2")
	credential := connections.present(connection, 1)
	connection.Close()
	<-credential.ready
	if credential.reason == nil || len(connections.authentications.addresses) != 0 {
		t.Error("the credential waits for its turn")
	}
}

// A handle that the server revokes right after it has given it is revoked, whatever the goroutine does that has asked.
func TestAHandleIsRevokedAtOnce(t *testing.T) {
	connections := newConnections(limitsOfTests())
	connections.calls, _ = pipe(t)
	connection := connections.admitFrom(t, "10.0.0.1")
	connections.mutex.Lock()
	credential, _ := connection.use([sha256.Size]byte{1})
	connections.unlock()
	number, err := connections.calls.send(link.Authenticate, requestOf(0), pendingCall{credential: credential, answers: make(chan answer, 1)})
	if err != nil {
		t.Fatal(err)
	}
	handle := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, 7), 60_000)
	connections.calls.deliver(link.Response, number, handle)
	connections.revoke(7, "revoked")
	if credential.ctx.Err() == nil || credential.reason.Message() != "revoked" {
		t.Errorf("the credential is in use: %v", credential.reason)
	}
}
