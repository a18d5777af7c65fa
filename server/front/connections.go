package main

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gavel/front/internal/http2"
	"gavel/front/internal/refusals"
	"gavel/front/internal/sockets"
)

// A caller with more than this part of all connections, one in so many, makes room for others even while its calls are under way.
const largeShare = 64

// The part of an IPv6 address that names a network, whose hosts usually belong to one caller.
const networkBits = 64

// connections are the callers' connections and what their calls hold in memory. They refuse connections and calls that exceed a limit.
type connections struct {
	limits          limits
	decompressions  chan struct{} // holds one for each decompression under way
	forwarded       *turns        // of forwarded calls
	large           *turns        // of large requests on the link
	authentications *turns        // of credentials that the server is asked about
	identity        *identity
	calls           *calls // of the link, by which the server is asked who callers are

	mutex    sync.Mutex
	all      map[*connection]struct{}
	counts   map[string]int // connections by caller
	bytes    int            // in flight
	now      int            // seconds since the start
	idle     int            // how often a connection has become idle
	ended    []*call        // calls whose refusal is to be sent
	aborting []*connection  // those whose early abort has not been sent, in order

	handles map[uint32]*credential // that the server has given
}

func newConnections(limits limits) *connections {
	return &connections{
		limits:          limits,
		decompressions:  make(chan struct{}, limits.Decompressions),
		forwarded:       newTurns(limits.ForwardedCalls, forwardedTurnMax),
		large:           newTurns(limits.LargeRequests, largeTurnMax),
		authentications: newTurns(limits.Authentications, authenticationTurnMax),
		all:             map[*connection]struct{}{},
		counts:          map[string]int{},
		handles:         map[uint32]*credential{},
		identity:        &identity{},
	}
}

// callerOf returns the key by which connections are counted: their address, or one key for all Unix sockets. The hosts of an IPv6 network of
// 64 bits are one address, as for the server (gavel_server/fairness/callers.py).
func callerOf(address net.Addr) string {
	if address.Network() == "unix" {
		return sockets.UnixPrefix
	}
	host, _, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap(); ip.Is4() || ip.IsLinkLocalUnicast() || ip.IsLoopback() {
		return ip.String()
	}
	return netip.PrefixFrom(ip.WithZone(""), networkBits).Masked().String()
}

// unlock unlocks the mutex and sends the refusals that were made while it was held.
func (connections *connections) unlock() {
	ended := connections.ended
	connections.ended = nil
	connections.mutex.Unlock()
	sendRefusals(ended)
}

// unlockInTap is unlock for tapCall: grpc-go holds a lock of the connection meanwhile, which sending may take.
func (connections *connections) unlockInTap() {
	ended := connections.ended
	connections.ended = nil
	connections.mutex.Unlock()
	if len(ended) > 0 {
		go sendRefusals(ended)
	}
}

func sendRefusals(ended []*call) {
	for _, call := range ended {
		call.stream.SetTrailer(refusals.Advice(call.refusal))
		call.stream.WriteStatus(call.refusal)
	}
}

// admit returns a newcomer as a connection, or nil if there is no room. If there are too many connections, the one that has been idle longest
// is closed for it. If none is idle, a caller with a large share of the connections makes room for one with a smaller share.
func (connections *connections) admit(newcomer net.Conn) *connection {
	connections.mutex.Lock()
	defer connections.unlock()
	connection := newConnection(connections, newcomer)
	full := len(connections.all) >= connections.limits.Connections
	greedy := connections.counts[connection.caller] >= connections.limits.CallerConnections
	if full || greedy {
		leaving := connections.longestIdle(connection.caller, greedy)
		if leaving == nil && !greedy {
			leaving = connections.ofLargestShare(connection.caller)
		}
		if leaving == nil {
			return nil
		}
		leaving.leave(http2.NoError)
	}
	connections.all[connection] = struct{}{}
	connections.counts[connection.caller]++
	return connection
}

// longestIdle returns the connection that has been idle for longest, among those of one caller or of all, or nil. Calls of health and
// reflection do not count: anybody may hold them open for ever.
func (connections *connections) longestIdle(caller string, ofCaller bool) *connection {
	var longest *connection
	for connection := range connections.all {
		if connection.busy > 0 || ofCaller && connection.caller != caller {
			continue
		}
		if longest == nil || connection.idle < longest.idle {
			longest = connection
		}
	}
	return longest
}

// ofLargestShare returns a connection of the caller that has most, the one that became busy last, or nil if that caller has few or would then have
// fewer than the newcomer's.
func (connections *connections) ofLargestShare(newcomer string) *connection {
	var largest string
	for caller, count := range connections.counts {
		if count > connections.counts[largest] {
			largest = caller
		}
	}
	few := max(connections.limits.Connections/largeShare, connections.counts[newcomer]+1)
	if connections.counts[largest] <= few {
		return nil
	}
	var last *connection
	for connection := range connections.all {
		if connection.caller == largest && (last == nil || connection.idle > last.idle) {
			last = connection
		}
	}
	return last
}

// ofMostAborts returns the connection that has waited longest in `aborting`, of the caller that has most connections there. A caller that reads
// its answers is not there for long.
func (connections *connections) ofMostAborts() *connection {
	counts := map[string]int{}
	for _, connection := range connections.aborting {
		counts[connection.caller]++
	}
	return slices.MaxFunc(connections.aborting, func(one, other *connection) int {
		return cmp.Compare(counts[one.caller], counts[other.caller])
	})
}

// remove forgets a connection that is closed, and its calls. Headers that grpc-go still reads from it become no calls.
func (connections *connections) remove(connection *connection) {
	if connection.hasLeft {
		return
	}
	connection.hasLeft = true
	connection.endAbort()
	for _, call := range connection.calls {
		connection.remove(call)
	}
	delete(connections.all, connection)
	for _, credential := range connection.credentials {
		credential.end(refusals.Unauthenticated("the connection has ended"))
	}
	connections.counts[connection.caller]--
	if connections.counts[connection.caller] == 0 {
		delete(connections.counts, connection.caller)
	}
}

// charge adds bytes to what a call holds, and refuses calls if that exceeds a limit.
func (connections *connections) charge(call *call, bytes int) {
	connection := call.connection
	call.bytes += bytes
	connection.bytes += bytes
	connections.bytes += bytes
	// A single call may exceed the limit of its connection: the limits of its method bound it.
	if connection.bytes > connections.limits.ConnectionBytes && connection.bytes > call.bytes {
		message := fmt.Sprintf("the calls of this connection hold more than %d bytes; read the answers, then try again", connections.limits.ConnectionBytes)
		call.refuse(refusals.Exhausted(message))
	}
	if connections.bytes > connections.limits.BytesInFlight {
		connections.shed()
	}
}

// release takes bytes off what a call holds.
func (connections *connections) release(call *call, bytes int) {
	call.bytes -= bytes
	call.connection.bytes -= bytes
	connections.bytes -= bytes
}

// shed refuses the largest calls of the caller that holds most, connection by connection, until an eighth of the limit is free.
func (connections *connections) shed() {
	limit := connections.limits.BytesInFlight
	bytes := map[string]int{}
	for connection := range connections.all {
		bytes[connection.caller] += connection.bytes
	}
	// This sorts the connections, and then the calls of one connection after the other. A flood has too many calls to sort them all at once.
	largest := slices.SortedFunc(maps.Keys(connections.all), func(one, other *connection) int {
		return cmp.Or(cmp.Compare(bytes[other.caller], bytes[one.caller]), cmp.Compare(other.bytes, one.bytes))
	})
	message := fmt.Sprintf("the calls of all callers hold more than %d bytes, and yours are among the largest; try again", limit)
	reason := refusals.Exhausted(message)
	for _, connection := range largest {
		calls := slices.SortedFunc(maps.Values(connection.calls), func(one, other *call) int { return cmp.Compare(other.bytes, one.bytes) })
		for _, call := range calls {
			if connections.bytes <= limit-limit/8 {
				return
			}
			if call.bytes == 0 {
				break
			}
			call.refuse(reason)
			if call.unsent > 0 {
				connection.reset(call)
			}
		}
	}
}

// watch looks at the time limits once a second, until stop is closed.
func (connections *connections) watch(stop <-chan struct{}) {
	memory := newMemory()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			connections.tick()
			memory.tick()
		case <-stop:
			return
		}
	}
}

// tick advances the clock of the connections by a second and checks their time limits.
func (connections *connections) tick() {
	connections.mutex.Lock()
	defer connections.unlock()
	connections.now++
	for connection := range connections.all {
		connection.tick()
	}
}

// limitedListener accepts callers for whose connections there is room, and hangs up on others.
type limitedListener struct {
	net.Listener
	connections *connections
}

// Accept waits for a caller.
func (listener limitedListener) Accept() (net.Conn, error) {
	for {
		newcomer, err := listener.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if connection := listener.connections.admit(newcomer); connection != nil {
			return connection, nil
		}
		newcomer.Close()
	}
}
