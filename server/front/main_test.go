package main

import (
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"
)

var errAccept = errors.New("no more callers")

// deaf is a listener that nobody can reach any more.
type deaf struct {
	net.Listener
}

func (deaf) Accept() (net.Conn, error) { return nil, errAccept }

// A front whose callers can no longer connect ends, and says why.
func TestAFrontThatCannotListenAnyMoreEnds(t *testing.T) {
	listeners, _, err := listenOn("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	never := make(chan struct{})
	if err := run(grpc.NewServer(), []net.Listener{listeners[0], deaf{listeners[0]}}, never); !errors.Is(err, errAccept) {
		t.Errorf("it ends with %v", err)
	}
}

// One that is told to stop ends without an error.
func TestAFrontThatIsToldToStopEnds(t *testing.T) {
	listeners, _, err := listenOn("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	told := newTold()
	told.hear(stop)
	if err := run(grpc.NewServer(), listeners, told.stop); err != nil {
		t.Errorf("it ends with %v", err)
	}
}
