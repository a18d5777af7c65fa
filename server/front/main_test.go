package main

import (
	"errors"
	"net"
	"testing"

	"google.golang.org/grpc"

	"gavel/front/internal/sockets"
)

var errAccept = errors.New("no more callers")

// deaf is a listener that accepts no callers: Accept returns errAccept.
type deaf struct {
	net.Listener
}

func (deaf) Accept() (net.Conn, error) { return nil, errAccept }

// run returns the error of a listener that can accept no more callers.
func TestRunReturnsTheErrorOfAListener(t *testing.T) {
	var listeners []net.Listener
	for range 2 { // gRPC closes the one that fails, and the other must not fail for that
		opened, _, err := sockets.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, opened...)
	}
	listeners[1] = deaf{listeners[1]}
	if err := run(grpc.NewServer(), newConnections(limitsOfTests()), listeners, make(chan struct{})); !errors.Is(err, errAccept) {
		t.Errorf("run returned %v", err)
	}
}

// run returns no error once it is told to stop.
func TestRunEndsWhenToldToStop(t *testing.T) {
	listeners, _, err := sockets.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	orders := newOrders()
	orders.takeStop()
	if err := run(grpc.NewServer(), newConnections(limitsOfTests()), listeners, orders.stop); err != nil {
		t.Errorf("run returned %v", err)
	}
}
