package main

import (
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"gavel/front/internal/headers"
)

// order lets calls of connections wait in turn, passes the places on one by one, and returns whose call each place went to.
func order(t *testing.T, turns *turns, from *connection, waiting ...*connection) []*connection {
	t.Helper()
	channels := make([]chan struct{}, len(waiting))
	for place, connection := range waiting {
		channels[place] = turns.add(connection)
	}
	var served []*connection
	for range waiting {
		turns.passOn(from.caller)
		for place, ready := range channels {
			select {
			case <-ready:
				served, from, channels[place] = append(served, waiting[place]), waiting[place], nil
			default:
			}
		}
	}
	return served
}

// Places go to the addresses in turn, and within an address to its connections in turn, however many calls each has waiting.
func TestTurnsGoByAddressAndConnection(t *testing.T) {
	connections := newConnections(limitsOfTests())
	greedy, other := connections.admitFrom(t, "10.0.0.1"), connections.admitFrom(t, "10.0.0.1")
	stranger := connections.admitFrom(t, "10.0.0.2")
	turns := newTurns(2, time.Hour)
	if _, err := turns.begin(context.Background(), greedy); err != nil {
		t.Fatal(err)
	}
	served := order(t, turns, greedy, greedy, greedy, greedy, other, stranger)
	expected := []*connection{greedy, stranger, other, greedy, greedy}
	for place := range expected {
		if place >= len(served) || served[place] != expected[place] {
			t.Fatalf("place %d of %d goes to another connection", place, len(served))
		}
	}
}

// One address occupies half of the places at most, so that another one's call need not wait.
func TestOneAddressLeavesPlaces(t *testing.T) {
	connections := newConnections(limitsOfTests())
	greedy, stranger := connections.admitFrom(t, "10.0.0.1"), connections.admitFrom(t, "10.0.0.2")
	turns := newTurns(4, time.Hour)
	soon, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	begun := 0
	for range 4 {
		if _, err := turns.begin(soon, greedy); err == nil {
			begun++
		}
	}
	if begun != 2 {
		t.Errorf("%d of 4 places are occupied by one address", begun)
	}
	if _, err := turns.begin(context.Background(), stranger); err != nil {
		t.Error(err)
	}
	if len(turns.addresses) != 0 {
		t.Error("calls that have gone still wait")
	}
}

// A call that is not answered leaves its place after a while, and only once, even if it is answered later.
func TestATurnEndsOnce(t *testing.T) {
	connections := newConnections(limitsOfTests())
	slow, next := connections.admitFrom(t, "10.0.0.1"), connections.admitFrom(t, "10.0.0.2")
	turns := newTurns(1, time.Millisecond)
	first, err := turns.begin(context.Background(), slow)
	if err != nil {
		t.Fatal(err)
	}
	second, err := turns.begin(context.Background(), next)
	if err != nil {
		t.Fatal(err)
	}
	first.end()
	second.end()
	second.end()
	turns.mutex.Lock()
	defer turns.mutex.Unlock()
	if turns.free != 1 || len(turns.occupied) != 0 {
		t.Errorf("%d places are free, %v are occupied", turns.free, turns.occupied)
	}
}

// waiting is a forwarded call of a server that answers with headers, and then with nothing until it is told to.
type waiting struct {
	grpc.ClientStream
	header metadata.MD
	answer chan struct{}
}

func (call waiting) Header() (metadata.MD, error) { return call.header, nil }

func (call waiting) RecvMsg(any) error {
	<-call.answer
	return io.EOF
}

// headerless is a caller that gets no headers before its answer.
type headerless struct {
	grpc.ServerStream
	t *testing.T
}

func (caller headerless) SendHeader(metadata.MD) error {
	caller.t.Error("the caller gets headers, after which it would not repeat the call")
	return nil
}

// A call that waits at the server leaves its place at once, and its caller does not see that.
func TestACallThatWaitsLeavesItsPlace(t *testing.T) {
	connections := newConnections(limitsOfTests())
	turns := newTurns(1, time.Hour)
	place, err := turns.begin(context.Background(), connections.admitFrom(t, "10.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	server := waiting{header: metadata.Pairs(headers.WaitsKey, "1"), answer: make(chan struct{})}
	ended := make(chan error)
	go func() { ended <- callOf(t, limitsOfTests()).passResponses(server, headerless{t: t}, place) }()
	next, err := turns.begin(context.Background(), connections.admitFrom(t, "10.0.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	next.end()
	close(server.answer)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
