package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gavel/front/internal/http2"
)

// socket is one end of a pipe from an address.
type socket struct {
	net.Conn
	address net.Addr
}

func (socket socket) RemoteAddr() net.Addr { return socket.address }

func (connections *connections) admitFrom(t *testing.T, host string) *connection {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return connections.admit(socket{ours, &net.TCPAddr{IP: net.ParseIP(host), Port: 4711}})
}

func (connections *connections) holds(connection *connection) bool {
	_, found := connections.all[connection]
	return found
}

// At the limit, the connection that has been idle longest makes room; with calls under way on all, there is no room.
func TestTheLongestIdleConnectionMakesRoom(t *testing.T) {
	connections := newConnections(limitsOfTests())
	var admitted []*connection
	for _, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		admitted = append(admitted, connections.admitFrom(t, host))
	}
	busy := admitted[0].open("/x", nil)
	admitted[1].remove(admitted[1].open("/x", nil)) // idle since now
	newcomer := connections.admitFrom(t, "10.0.0.5")
	if newcomer == nil || !connections.holds(admitted[0]) || !connections.holds(admitted[1]) || connections.holds(admitted[2]) {
		t.Error("the third connection has been idle longest")
	}
	for _, connection := range []*connection{admitted[1], admitted[3], newcomer} {
		connection.open("/x", nil)
	}
	if connections.admitFrom(t, "10.0.0.6") != nil {
		t.Error("all connections are busy, and another one is admitted")
	}
	admitted[0].remove(busy)
	if connections.admitFrom(t, "10.0.0.6") == nil || connections.holds(admitted[0]) {
		t.Error("the first connection is idle again and does not make room")
	}
}

// Connections with nothing but streams of health make room, in the order in which they had their last other call.
func TestStreamsOfHealthDoNotKeepOthersOut(t *testing.T) {
	const watch = "/grpc.health.v1.Health/Watch"
	connections := newConnections(limitsOfTests())
	var admitted []*connection
	for _, host := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		connection := connections.admitFrom(t, host)
		connection.open(watch, nil)
		admitted = append(admitted, connection)
	}
	busy := admitted[0].openNext()
	admitted[1].remove(admitted[1].openNext()) // idle since now, but for its stream
	if connections.admitFrom(t, "10.0.0.5") == nil || connections.holds(admitted[2]) {
		t.Error("the third connection has had no call but a stream of health for longest, and does not make room")
	}
	if connections.admitFrom(t, "10.0.0.6") == nil || connections.holds(admitted[3]) {
		t.Error("the fourth connection does not make room")
	}
	if connections.admitFrom(t, "10.0.0.7") == nil || connections.holds(admitted[1]) || !connections.holds(admitted[0]) {
		t.Error("the second connection does not make room")
	}
	admitted[0].remove(busy)
	if admitted[0].busy != 0 || len(admitted[0].calls) != 1 {
		t.Errorf("%d calls keep the first connection busy, which has %d", admitted[0].busy, len(admitted[0].calls))
	}
}

// With calls under way on all connections, the caller with most makes room for others, but not for one that would then have as many.
func TestTheCallerWithMostConnectionsMakesRoom(t *testing.T) {
	connections := newConnections(limitsOfTests())
	var greedy []*connection
	for range 3 {
		connection := connections.admitFrom(t, "10.0.0.1")
		connection.open("/x", nil)
		greedy = append(greedy, connection)
	}
	connections.admitFrom(t, "10.0.0.2").open("/x", nil)
	newcomer := connections.admitFrom(t, "10.0.0.3")
	if newcomer == nil || connections.holds(greedy[2]) || !connections.holds(greedy[1]) {
		t.Fatal("the connection that became busy last does not make room")
	}
	newcomer.open("/x", nil)
	if connections.admitFrom(t, "10.0.0.3") != nil {
		t.Error("a caller takes the place of one that has no more than it would have itself")
	}
	if connections.admitFrom(t, "10.0.0.1") != nil {
		t.Error("the caller with most connections takes another one")
	}
	another := connections.admitFrom(t, "10.0.0.4")
	if another == nil || connections.holds(greedy[1]) {
		t.Fatal("the caller with most connections does not make room again")
	}
	another.open("/x", nil)
	if connections.admitFrom(t, "10.0.0.5") != nil || !connections.holds(greedy[0]) {
		t.Error("a caller loses its last connection")
	}
}

// The hosts of an IPv6 network of 64 bits are one address; each IPv4 host, and each host that no router reaches, is an address of its own.
func TestAddressesOfCallers(t *testing.T) {
	for host, address := range map[string]string{
		"192.0.2.1":          "192.0.2.1",
		"::ffff:192.0.2.1":   "192.0.2.1",
		"2001:db8:1:2::7":    "2001:db8:1:2::/64",
		"2001:db8:1:2:9::9":  "2001:db8:1:2::/64",
		"2001:db8:1:3::7":    "2001:db8:1:3::/64",
		"::1":                "::1",
		"fe80::1":            "fe80::1",
		"fd00:1:2:3:4:5:6:7": "fd00:1:2:3::/64",
	} {
		if found := callerOf(&net.TCPAddr{IP: net.ParseIP(host), Port: 4711}); found != address {
			t.Errorf("%s counts as %s, not %s", host, found, address)
		}
	}
	if found := callerOf(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}); found != "fe80::1%eth0" {
		t.Errorf("a host of a link counts as %s", found)
	}
}

// A caller with too many connections makes room itself; other callers keep theirs.
func TestACallerMakesRoomForItself(t *testing.T) {
	limits := limitsOfTests()
	limits.CallerConnections = 2
	connections := newConnections(limits)
	other := connections.admitFrom(t, "10.0.0.1")
	first, second := connections.admitFrom(t, "10.0.0.2"), connections.admitFrom(t, "10.0.0.2")
	first.open("/x", nil)
	if third := connections.admitFrom(t, "10.0.0.2"); third == nil || connections.holds(second) || !connections.holds(other) {
		t.Error("the second connection does not make room")
	} else {
		third.open("/x", nil)
	}
	if connections.admitFrom(t, "10.0.0.2") != nil {
		t.Error("a third connection is admitted")
	}
	first.Close()
	if connections.admitFrom(t, "10.0.0.2") == nil || connections.counts["10.0.0.2"] != 2 {
		t.Error("a closed connection leaves no room")
	}
}

// Of a connection, the call that exceeds its limit is refused; of all, the largest calls of the caller that holds most.
func TestBytesInFlight(t *testing.T) {
	limits := limitsOfTests()
	connections := newConnections(limits)
	small := connections.admitFrom(t, "10.0.0.1")
	honest := small.open("/x", nil)
	honest.receive(limits.ConnectionBytes-callBytes, 0)
	second := small.openNext()
	second.receive(1, 0)
	if honest.refusal != nil || second.refusal.Code() != codes.ResourceExhausted {
		t.Errorf("%v, %v", honest.refusal, second.refusal)
	}
	if small.bytes != limits.ConnectionBytes || connections.bytes != small.bytes {
		t.Errorf("the connection holds %d bytes, all %d", small.bytes, connections.bytes)
	}
	var greedy []*call
	for range 3 {
		connection := connections.admitFrom(t, "10.0.0.2")
		call := connection.open("/x", nil)
		call.receive(limits.ConnectionBytes-callBytes, 0)
		greedy = append(greedy, call)
	}
	if connections.bytes != limits.BytesInFlight {
		t.Fatalf("%d bytes are in flight", connections.bytes)
	}
	honest.receive(1, 0)
	refused := 0
	for _, call := range greedy {
		if call.refusal != nil {
			refused++
		}
	}
	if honest.refusal != nil || refused != 1 || connections.bytes != limits.BytesInFlight-limits.ConnectionBytes+1 {
		t.Errorf("%d greedy calls are refused, %d bytes are in flight; the honest one: %v", refused, connections.bytes, honest.refusal)
	}
	for connection := range connections.all {
		connection.Close()
	}
	if connections.bytes != 0 || len(connections.all) != 0 || len(connections.counts) != 0 {
		t.Errorf("%d bytes are in flight without connections", connections.bytes)
	}
}

// Calls without a message are limited by what they take themselves.
func TestCallsWithoutAMessage(t *testing.T) {
	limits := limitsOfTests()
	limits.BytesInFlight = 8 * callBytes
	connections := newConnections(limits)
	honest := connections.admitFrom(t, "10.0.0.1").open("/x", nil)
	for range 2 {
		connection := connections.admitFrom(t, "10.0.0.2")
		for range 8 {
			connection.openNext()
		}
	}
	if honest.refusal != nil || connections.bytes > limits.BytesInFlight {
		t.Errorf("%d bytes are in flight; the honest call: %v", connections.bytes, honest.refusal)
	}
}

// Answers that are not read make room when their calls are shed; smaller calls of the same caller are not touched.
func TestSheddingStopsWhenThereIsRoom(t *testing.T) {
	limits := limitsOfTests()
	connections := newConnections(limits)
	var stalled []*call
	for range 3 {
		connection := connections.admitFrom(t, "10.0.0.1")
		for range 4 {
			call := connection.openNext()
			if err := call.prepare(limits.ConnectionBytes/4 - callBytes - messageHeaderBytes); err != nil {
				t.Fatal(err)
			}
			stalled = append(stalled, call)
		}
	}
	small := connections.admitFrom(t, "10.0.0.1").openNext()
	if err := small.prepare(1000 - messageHeaderBytes); err != nil {
		t.Fatal(err)
	}
	stalled[0].connection.table.limits.BytesInFlight = connections.bytes
	if err := small.prepare(1 - messageHeaderBytes); err != nil || small.refusal != nil {
		t.Errorf("the small call is refused: %v", err)
	}
	refused := 0
	for _, call := range stalled {
		if call.refusal != nil {
			refused++
		}
	}
	if refused != 2 || connections.bytes != 10*limits.ConnectionBytes/4+callBytes+1001 {
		t.Errorf("%d calls are refused, and %d bytes are in flight", refused, connections.bytes)
	}
}

// openNext opens another call.
func (connection *connection) openNext() *call {
	connection.opening += 2
	return connection.open("/x", nil)
}

// A connection whose calls are reset too often is closed; the count begins anew with each interval.
func TestResets(t *testing.T) {
	limits := limitsOfTests()
	connections := newConnections(limits)
	connection := connections.admitFrom(t, "10.0.0.1")
	for range 3 {
		for range limits.Resets {
			connection.receive(http2.Frame{Kind: http2.Reset, Stream: connection.openNext().id})
		}
		connections.now += limits.ResetSeconds
	}
	if !connections.holds(connection) || connection.hasLeft || len(connection.calls) != 0 {
		t.Fatal("the connection is closed below the limit")
	}
	for range limits.Resets + 1 {
		connection.send(http2.Frame{Kind: http2.Reset, Stream: connection.openNext().id})
	}
	if connections.holds(connection) || !connection.hasLeft {
		t.Error("the connection stays open above the limit")
	}
}

// A call whose headers are read after the connection has left holds no bytes, and nothing more is read.
func TestACallOfAConnectionThatHasLeft(t *testing.T) {
	connections := newConnections(limitsOfTests())
	connection := connections.admitFrom(t, "10.0.0.1")
	connection.leave(http2.NoError)
	call := connection.open("/x", metadata.Pairs("key", "value"))
	call.receive(100, 0)
	if connections.bytes != 0 || connection.busy != 0 || len(connection.calls) != 0 || call.refusal.Code() != codes.Unavailable {
		t.Errorf("the call holds %d bytes, and is refused with %v", connections.bytes, call.refusal)
	}
	connection.end = 9
	if _, err := connection.Read(make([]byte, 9)); !errors.Is(err, errLeft) {
		t.Errorf("the connection is read: %v", err)
	}
	connection.Close()
	if connections.bytes != 0 {
		t.Errorf("%d bytes are in flight without connections", connections.bytes)
	}
}

// A caller that does not read the statuses of its calls loses its connection before it has many of them.
func TestCallsWhoseStatusIsNotSent(t *testing.T) {
	limits := limitsOfTests()
	connections := newConnections(limits)
	connection := connections.admitFrom(t, "10.0.0.1")
	for range 2 * limits.ConnectionCalls {
		connection.openNext()
	}
	if !connections.holds(connection) {
		t.Fatal("the connection is closed below the limit")
	}
	connection.openNext()
	if connections.holds(connection) || connections.bytes != 0 {
		t.Error("the connection stays open above the limit")
	}
}

// admitPipe admits a connection whose preface has come, and returns the caller's end as well.
func (connections *connections) admitPipe(t *testing.T, host string) (*connection, net.Conn) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	connection := connections.admit(socket{ours, &net.TCPAddr{IP: net.ParseIP(host), Port: 4711}})
	connection.inbound = http2.Scanner{}
	return connection, theirs
}

// readHeaders lets a connection read the headers of a stream, which do not become a call.
func (connection *connection) readHeaders(t *testing.T, theirs net.Conn, stream byte) {
	t.Helper()
	go theirs.Write([]byte{0, 0, 0, http2.Headers, http2.EndHeaders, 0, 0, 0, stream})
	if count, err := io.ReadFull(connection, make([]byte, 9)); err != nil {
		t.Fatalf("%d bytes are read, and: %v", count, err)
	}
}

// openAborted is readHeaders, and reads the frame that the connection then injects.
func (connection *connection) openAborted(t *testing.T, theirs net.Conn, stream byte) {
	t.Helper()
	connection.readHeaders(t, theirs, stream)
	data := make([]byte, 100)
	count, err := connection.Read(data)
	if err != nil || !bytes.Equal(data[:count], http2.NewStreamError(uint32(stream))) {
		t.Fatalf("grpc-go reads %v after the headers, and: %v", data[:count], err)
	}
}

// Headers that do not become a call are reset, and nothing is read until that is sent.
func TestHeadersThatBecomeNoCall(t *testing.T) {
	connections := newConnections(limitsOfTests())
	connection, theirs := connections.admitPipe(t, "10.0.0.1")
	for stream := byte(1); stream <= 3; stream += 2 {
		connection.openAborted(t, theirs, stream)
		if connection.abortSent == nil || len(connections.aborting) != 1 {
			t.Fatal("the connection reads on before the answer is sent")
		}
		connection.send(http2.Frame{Kind: http2.Reset, Stream: uint32(stream)})
		if connection.abortSent != nil || len(connections.aborting) != 0 {
			t.Fatal("the connection waits for an answer that is being sent")
		}
	}
}

// Headers that do not become a call count as one reset, whenever grpc-go resets their stream, and how often.
func TestHeadersThatBecomeNoCallCountOnce(t *testing.T) {
	connections := newConnections(limitsOfTests())
	connection, theirs := connections.admitPipe(t, "10.0.0.1")
	reset := func(stream uint32) { connection.send(http2.Frame{Kind: http2.Reset, Stream: stream}) }
	connection.readHeaders(t, theirs, 1)
	reset(1) // before the front knows of the early abort
	if count, err := connection.Read(make([]byte, 100)); count == 0 || err != nil {
		t.Fatal(err)
	}
	reset(1)
	connection.openAborted(t, theirs, 3)
	reset(3)
	connection.openAborted(t, theirs, 5)
	reset(3) // grpc-go has only now written the reset that was injected
	reset(5)
	if connection.resetCount != 3 || len(connections.aborting) != 0 {
		t.Errorf("three streams count as %d resets, and %d answers wait", connection.resetCount, len(connections.aborting))
	}
	call := connection.openNext()
	reset(call.id)
	if connection.resetCount != 4 {
		t.Error("a call that is reset does not count")
	}
}

// Too many headers that do not become a call count as too many resets.
func TestManyHeadersThatBecomeNoCall(t *testing.T) {
	limits := limitsOfTests()
	connections := newConnections(limits)
	connection, theirs := connections.admitPipe(t, "10.0.0.1")
	for place := range limits.Resets {
		connection.openAborted(t, theirs, byte(2*place+1))
		connection.send(http2.Frame{Kind: http2.Reset, Stream: connection.opening})
	}
	if !connections.holds(connection) {
		t.Fatal("the connection is closed at the limit")
	}
	connection.readHeaders(t, theirs, byte(2*limits.Resets+1))
	if count, err := connection.Read(make([]byte, 100)); count > 0 || err == nil || connections.holds(connection) {
		t.Error("the connection stays open above the limit")
	}
}

// A caller that lets answers to its headers wait on many connections loses the oldest of them; the connections of others stay open.
func TestTheCallerWithMostAbortsMakesRoom(t *testing.T) {
	limits := limitsOfTests()
	limits.Connections, limits.CallerConnections = 2*abortsMax, 2*abortsMax
	connections := newConnections(limits)
	open := func(host string) *connection {
		connection, theirs := connections.admitPipe(t, host)
		connection.openAborted(t, theirs, 1)
		return connection
	}
	first := open("10.0.0.2")
	var greedy []*connection
	for range abortsMax - 1 {
		greedy = append(greedy, open("10.0.0.1"))
	}
	if len(connections.all) != abortsMax {
		t.Fatalf("%d connections are left at the limit", len(connections.all))
	}
	another := open("10.0.0.3")
	if !connections.holds(first) || !connections.holds(another) || connections.holds(greedy[0]) {
		t.Error("the caller with most connections that wait does not make room for another caller")
	}
	own := open("10.0.0.1")
	if !connections.holds(first) || !connections.holds(another) || !connections.holds(own) || connections.holds(greedy[1]) {
		t.Error("the caller with most connections that wait does not make room for its own")
	}
	if len(connections.aborting) != abortsMax || len(connections.all) != abortsMax {
		t.Errorf("%d connections wait, of %d", len(connections.aborting), len(connections.all))
	}
	if _, err := greedy[0].Read(make([]byte, 9)); err == nil {
		t.Error("a closed connection is read")
	}
}

// unwritable is a socket whose caller has closed it to answers.
type unwritable struct{ net.Conn }

func (unwritable) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A connection that cannot be written does not wait for an early abort: grpc-go writes nothing after the first error.
func TestHeadersThatCannotBeAnswered(t *testing.T) {
	settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
	for _, isOpened := range []bool{false, true} {
		connections := newConnections(limitsOfTests())
		connection, theirs := connections.admitPipe(t, "10.0.0.1")
		connection.Conn = unwritable{connection.Conn}
		if isOpened {
			connection.openAborted(t, theirs, 1)
		} else {
			connection.readHeaders(t, theirs, 1)
		}
		if _, err := connection.Write(settings); err == nil {
			t.Fatal("the socket is written")
		}
		if connections.holds(connection) || len(connections.aborting) != 0 {
			t.Fatalf("the connection is kept, and %d answers wait", len(connections.aborting))
		}
		if count, err := connection.Read(make([]byte, 100)); count > 0 || err == nil {
			t.Errorf("grpc-go reads %d bytes", count)
		}
		if len(connections.aborting) != 0 {
			t.Error("the answer waits")
		}
	}
}

// A call that makes room by ending another one of its connection is opened all the same: grpc-go holds a lock meanwhile, and takes it to end a call
// whose caller allows no headers.
func TestSheddingWhileACallIsOpened(t *testing.T) {
	limits := limitsOfTests()
	limits.BytesInFlight = 2*callBytes + 12_000
	connections := newConnections(limits)
	server := newServer(nil, nil, &limits, nil)
	defer server.Stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(limitedListener{listener, connections})
	channel, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithMaxHeaderListSize(1))
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var calls []grpc.ClientStream
	for _, size := range []int{10_000, 5_000} {
		call, err := channel.NewStream(metadata.AppendToOutgoingContext(ctx, "key", strings.Repeat("x", size)), anyShape, "/gavel.v1.EventService/GetEvent")
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, call)
		for len(calls) == 1 && !connections.hasBegun() {
			time.Sleep(time.Millisecond)
		}
	}
	calls[1].CloseSend() // it has no message
	for place, call := range calls {
		if err := call.RecvMsg(nil); status.Code(err) != codes.Internal { // its stream was reset
			t.Errorf("call %d ends with %v", place, err)
		}
	}
}

// hasBegun reports whether a handler has a call.
func (connections *connections) hasBegun() bool {
	connections.mutex.Lock()
	defer connections.mutex.Unlock()
	for connection := range connections.all {
		for _, call := range connection.calls {
			return call.stream != nil
		}
	}
	return false
}

// Padding counts as long as the messages around it are not read, and then no longer.
func TestPaddingOfMessages(t *testing.T) {
	connection := newConnections(limitsOfTests()).admitFrom(t, "10.0.0.1")
	call := connection.open("/gavel.v1.EventService/GetEvent", nil)
	padded := http2.Frame{Kind: http2.Data, Length: 30, Padding: 20}
	for range 2 {
		connection.receive(padded)
	}
	if connection.bytes != callBytes+60 {
		t.Errorf("the connection holds %d bytes", connection.bytes)
	}
	for _, left := range []int{callBytes + 60 - 10, callBytes} { // the bytes of a message are settled when it was answered
		message := &request{wireBytes: 10, size: 10 - messageHeaderBytes}
		if err := call.read(received{}, message); err != nil {
			t.Fatal(err)
		}
		call.settle(message)
		if connection.bytes != left {
			t.Errorf("the connection holds %d bytes, not %d", connection.bytes, left)
		}
	}
}

// Frames without data do not keep a call open whose message does not arrive.
func TestPaddingIsNoMessage(t *testing.T) {
	limits := limitsOfTests()
	call := callOf(t, limits)
	for _, frame := range []http2.Frame{{Kind: http2.Data}, {Kind: http2.Data, Length: 1, Padding: 1}} {
		call = call.connection.openNext()
		frame.Stream = call.id
		for range limits.RequestSeconds {
			call.connection.receive(frame)
			call.connection.table.tick()
		}
		if call.refusal.Code() != codes.ResourceExhausted {
			t.Errorf("a call that gets frames of %d bytes of padding is not refused: %v", frame.Padding, call.refusal)
		}
	}
}

// received is a stream whose next message has been received.
type received struct{ grpc.ServerStream }

func (received) RecvMsg(any) error { return nil }

// flood is a socket whose caller always has sent more.
type flood struct{ socket }

func (flood flood) Read(data []byte) (int, error) { return len(data), nil }

// turnsOfAnother returns how often a goroutine that always yields has run during the work.
func turnsOfAnother(work func()) int {
	var isOver atomic.Bool
	var ran atomic.Int32
	go func() {
		for !isOver.Load() {
			ran.Add(1)
			runtime.Gosched()
		}
	}()
	work()
	isOver.Store(true)
	return int(ran.Load())
}

// A caller that floods its connection does not keep the only processor: another goroutine runs after each turnBytes.
func TestAFloodedConnectionGivesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const turns = 50
	connection := newConnections(limitsOfTests()).admit(flood{socket{address: &net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 4711}}})
	data := make([]byte, readAheadBytes)
	ran := turnsOfAnother(func() {
		for bytes := 0; bytes < turns*turnBytes; {
			count, err := connection.Read(data)
			if err != nil {
				t.Fatal(err)
			}
			bytes += count
		}
	})
	if ran < turns/2 {
		t.Errorf("another goroutine has run %d times while %d x %d bytes were read", ran, turns, turnBytes)
	}
}
