package secure

import (
	"crypto/tls"
	"net"
	"testing"
	"time"
)

// A connection that is made to leave in the middle of its handshake closes at once, however long the client takes to say hello.
func TestLeavingDuringTheHandshake(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	certificates := &Certificates{outer: &tls.Config{MinVersion: tls.VersionTLS12}}
	conn := certificates.Server(ours)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	if _, err := theirs.Write([]byte{22, 3, 1}); err != nil { // the begin of a record; the handshake waits for the rest
		t.Fatal(err)
	}
	go conn.Leave([]byte("last"))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the handshake has succeeded")
		}
	case <-time.After(20 * time.Second):
		t.Error("the connection stays open")
	}
}
