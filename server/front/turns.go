package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// How long a call occupies its place if it is not answered: it then waits for something, and the server works on other calls. A large request
// takes the server some time, and much memory.
const (
	forwardedTurnMax = 100 * time.Millisecond
	largeTurnMax     = 2 * time.Second

	authenticationTurnMax = 100 * time.Millisecond
)

// turns limit how many calls or credentials the server works on at once, in all and for each address. The others wait here, where they cost the
// server nothing, and take turns: by address, and within an address by connection.
//
// The server answers in the order in which calls reach it. Without turns, a caller with hundreds of calls would delay everybody by all of them.
type turns struct {
	turnMax         time.Duration
	placesOfAddress int // the most that one address may occupy; the others' calls find the rest free

	mutex     sync.Mutex
	free      int
	occupied  map[string]int  // places, by address
	addresses []*addressTurns // that have waiting calls; the first that has a place left is next
}

// addressTurns are the connections of an address that have waiting calls; the first is next.
type addressTurns struct {
	address     string
	connections []*connectionTurns
}

// connectionTurns are the waiting calls of a connection, in order.
type connectionTurns struct {
	connection *connection
	waiting    []chan struct{}
}

// turn is a place that a call occupies.
type turn struct {
	turns   *turns
	address string
	timer   *time.Timer
	once    sync.Once
}

func newTurns(places int, turnMax time.Duration) *turns {
	return &turns{turnMax: turnMax, placesOfAddress: max(places/2, 1), free: places, occupied: map[string]int{}}
}

// begin waits for the turn of a call. It returns an error if the context ends before.
func (turns *turns) begin(ctx context.Context, connection *connection) (*turn, error) {
	turns.mutex.Lock()
	if turns.free > 0 && turns.occupied[connection.caller] < turns.placesOfAddress {
		turns.free--
		turns.occupied[connection.caller]++
		turns.mutex.Unlock()
		return turns.start(connection.caller), nil
	}
	ready := turns.add(connection)
	turns.mutex.Unlock()
	select {
	case <-ready:
		return turns.start(connection.caller), nil
	case <-ctx.Done():
		if !turns.remove(connection, ready) {
			turns.passOn(connection.caller) // the turn came at the same moment
		}
		return nil, ctx.Err()
	}
}

func (turns *turns) start(address string) *turn {
	turn := &turn{turns: turns, address: address}
	turn.timer = time.AfterFunc(turns.turnMax, func() { turn.once.Do(func() { turns.passOn(address) }) })
	return turn
}

// end gives the place to the next call. It may be called more than once.
func (turn *turn) end() {
	turn.once.Do(func() {
		turn.timer.Stop()
		turn.turns.passOn(turn.address)
	})
}

// passOn takes a place from an address and gives it to the next waiting call.
func (turns *turns) passOn(from string) {
	turns.mutex.Lock()
	defer turns.mutex.Unlock()
	turns.occupied[from]--
	if turns.occupied[from] == 0 {
		delete(turns.occupied, from)
	}
	next := slices.IndexFunc(turns.addresses, func(one *addressTurns) bool { return turns.occupied[one.address] < turns.placesOfAddress })
	if next < 0 {
		turns.free++
		return
	}
	address := turns.addresses[next]
	turns.occupied[address.address]++
	connection := address.connections[0]
	ready := connection.waiting[0]
	connection.waiting = connection.waiting[1:]
	address.connections = address.connections[1:]
	if len(connection.waiting) > 0 {
		address.connections = append(address.connections, connection)
	}
	turns.addresses = slices.Delete(turns.addresses, next, next+1)
	if len(address.connections) > 0 {
		turns.addresses = append(turns.addresses, address)
	}
	close(ready)
}

// add lets a call of a connection wait, and returns the channel that is closed when its turn comes.
func (turns *turns) add(connection *connection) chan struct{} {
	ready := make(chan struct{})
	address := turns.find(connection.caller)
	if address == nil {
		address = &addressTurns{address: connection.caller}
		turns.addresses = append(turns.addresses, address)
	}
	line := address.find(connection)
	if line == nil {
		line = &connectionTurns{connection: connection}
		address.connections = append(address.connections, line)
	}
	line.waiting = append(line.waiting, ready)
	return ready
}

// remove takes a waiting call out of the queue, and reports whether it was still there.
func (turns *turns) remove(of *connection, ready chan struct{}) bool {
	turns.mutex.Lock()
	defer turns.mutex.Unlock()
	address := turns.find(of.caller)
	if address == nil {
		return false
	}
	line := address.find(of)
	if line == nil || !drop(&line.waiting, ready) {
		return false
	}
	if len(line.waiting) == 0 {
		drop(&address.connections, line)
	}
	if len(address.connections) == 0 {
		drop(&turns.addresses, address)
	}
	return true
}

func (turns *turns) find(address string) *addressTurns {
	for _, one := range turns.addresses {
		if one.address == address {
			return one
		}
	}
	return nil
}

func (address *addressTurns) find(connection *connection) *connectionTurns {
	for _, one := range address.connections {
		if one.connection == connection {
			return one
		}
	}
	return nil
}

// drop removes an item from a slice, and reports whether it was there.
func drop[Item comparable](items *[]Item, item Item) bool {
	place := slices.Index(*items, item)
	if place < 0 {
		return false
	}
	*items = slices.Delete(*items, place, place+1)
	return true
}
