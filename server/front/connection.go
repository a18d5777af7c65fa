package main

import (
	"crypto/sha256"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gavel/front/internal/headers"
	"gavel/front/internal/http2"
	"gavel/front/internal/secure"
	"gavel/front/internal/sockets"
)

// Size of the read-ahead buffer, which holds many small frames. The payload of a large frame bypasses it.
const readAheadBytes = 8 << 10

// After so many bytes, a goroutine that reads or decompresses lets others run. Go would let it run for 10 ms, and each call needs several goroutines
// in turn.
const turnBytes = 64 << 10

// An early abort is grpc-go's answer to headers that it refuses before it calls tapCall. It quotes the headers, and takes several times their bytes.
// This is the number of connections on which one may wait to be sent. Beyond that, the caller with most of these connections loses the one that has
// waited longest.
const abortsMax = 32

var errLeft = errors.New("the connection was closed")

// connection is a caller's connection as grpc-go reads and writes it. It scans the frames that pass (internal/http2) to count the bytes that
// each call has received and not read, or answered and not sent. grpc-go counts neither.
//
// It hands a call's headers to grpc-go alone, without the bytes that follow. grpc-go handles them, and calls tapCall, before it reads on. The
// call that tapCall sees is therefore the one whose headers came last.
//
// Some headers do not become a call: grpc-go refuses them before tapCall, and queues the answer whether or not the caller reads. The connection
// then hands it nothing more until the answer is being written.
type connection struct {
	net.Conn
	table  *connections
	caller string  // whose connections are counted together
	peer   string  // the caller's address, as the server receives it
	user   *uint32 // at the other end of a Unix socket; nil: of none

	// Used by the reading goroutine only.
	inbound      http2.Scanner
	buffer       []byte
	start        int             // of buffer: what grpc-go has not read
	scanned      int             // of buffer: the end of what grpc-go may read
	end          int             // of buffer: the end of what has arrived
	turn         int             // bytes read since other goroutines could run
	injected     []byte          // frames that grpc-go reads before the buffer
	readWaitsFor <-chan struct{} // `abortSent` of the latest early abort; nil: there is none

	// Used by the writing goroutine only.
	outbound http2.Scanner

	writingSince atomic.Int64 // the time of connections, plus one; 0: no write is under way
	hasResets    atomic.Bool

	// Guarded by the mutex of connections.
	calls          map[uint32]*call
	opening        uint32        // the stream whose headers came last
	isOpening      bool          // grpc-go was handed these headers, which are no call so far; only the reading goroutine changes it
	isComplete     bool          // nothing follows these headers
	abortedStreams [2]uint32     // the streams of the last early aborts, the latest first
	abortSent      chan struct{} // closed when grpc-go has reset the latest of them; nil: it has
	bytes          int           // that the calls hold
	busy           int           // how many calls keep it from counting as idle
	idle           int           // rank among the connections that have become idle
	resets         []uint32
	resetSince     int // the time when the first of `resets` was noted
	resetCount     int // calls that were reset, by either side, since resetStart
	resetStart     int
	hasLeft        bool // it is closed, or about to be

	credentials map[[sha256.Size]byte]*credential // by their digest
}

func newConnection(table *connections, from net.Conn) *connection {
	address := from.RemoteAddr()
	peer := address.String()
	conn := sockets.NewDirect(from)
	if address.Network() == "unix" {
		peer = sockets.UnixPrefix
	} else if table.identity.certificates != nil {
		conn = table.identity.certificates.Server(conn)
	}
	connection := &connection{
		Conn:    conn,
		table:   table,
		caller:  callerOf(address),
		peer:    peer,
		user:    sockets.PeerUser(from),
		buffer:  make([]byte, readAheadBytes),
		calls:   map[uint32]*call{},
		inbound: http2.NewScanner(),
	}
	table.idle++
	connection.idle = table.idle
	return connection
}

// callerAddress is the address of a caller, by which grpc-go's functions find its connection.
type callerAddress struct {
	net.Addr
	connection *connection
}

// RemoteAddr returns the caller's address.
func (connection *connection) RemoteAddr() net.Addr {
	return callerAddress{connection.Conn.RemoteAddr(), connection}
}

// Close closes the connection.
func (connection *connection) Close() error {
	connection.table.mutex.Lock()
	connection.table.remove(connection)
	connection.table.unlock()
	return connection.Conn.Close()
}

// Read implements io.Reader.
func (connection *connection) Read(data []byte) (int, error) {
	for {
		if len(connection.injected) > 0 {
			count := copy(data, connection.injected)
			connection.injected = connection.injected[count:]
			return count, nil
		}
		if connection.start < connection.scanned {
			count := copy(data, connection.buffer[connection.start:connection.scanned])
			connection.start += count
			return count, nil
		}
		if connection.isOpening { // else `open` would have been called by now
			connection.beginAbort()
			continue
		}
		if connection.readWaitsFor != nil {
			<-connection.readWaitsFor
			connection.readWaitsFor = nil
		}
		if connection.hasResets.Load() && connection.inbound.IsBetweenFrames() {
			connection.inject()
			continue
		}
		if connection.scanned == connection.end {
			count, err := connection.fill(data)
			if errors.Is(err, os.ErrDeadlineExceeded) && connection.hasResets.Load() {
				connection.SetReadDeadline(time.Time{})
				continue
			}
			if err != nil || count > 0 {
				return count, err
			}
		}
		if err := connection.scan(); err != nil {
			return 0, err
		}
	}
}

// fill reads ahead into the buffer and returns 0, or reads the payload of a large frame into data and returns its length.
func (connection *connection) fill(data []byte) (int, error) {
	if rest := connection.inbound.Rest(); rest >= len(connection.buffer) && len(data) > 0 {
		// All but the frame's last byte: scan needs that to see the frame's end.
		count, err := connection.Conn.Read(data[:min(len(data), rest-1)])
		connection.inbound.Skip(count)
		connection.takeTurns(count)
		return count, err
	}
	count, err := connection.Conn.Read(connection.buffer)
	connection.start, connection.scanned, connection.end = 0, 0, count
	connection.takeTurns(count)
	return 0, err
}

// takeTurns counts bytes that were read, and lets other goroutines run after turnBytes.
func (connection *connection) takeTurns(count int) {
	connection.turn += count
	if connection.turn >= turnBytes {
		connection.turn = 0
		runtime.Gosched()
	}
}

// scan examines the buffered bytes, up to the end of a call's headers.
func (connection *connection) scan() error {
	connection.table.mutex.Lock()
	defer connection.table.unlock()
	for connection.scanned < connection.end && !connection.hasLeft {
		used, began, ended := connection.inbound.Next(connection.buffer[connection.scanned:connection.end])
		connection.scanned += used
		frame := connection.inbound.Current
		if began {
			connection.receive(frame)
		}
		isHeaders := frame.Kind == http2.Headers || frame.Kind == http2.Continuation
		if ended && isHeaders && frame.Flags&http2.EndHeaders != 0 {
			connection.opening, connection.isOpening = frame.Stream, true
			break
		}
	}
	if connection.hasLeft {
		return errLeft
	}
	return nil
}

// beginAbort is called when grpc-go has refused headers. It has queued an early abort, or nothing if it is shutting down. It must now reset the stream
// as well: once that is written, so is the early abort.
func (connection *connection) beginAbort() {
	table := connection.table
	table.mutex.Lock()
	defer table.unlock()
	connection.isOpening = false
	connection.abortedStreams = [2]uint32{connection.opening, connection.abortedStreams[0]}
	connection.countReset()
	if connection.hasLeft {
		return
	}
	connection.abortSent = make(chan struct{})
	connection.readWaitsFor = connection.abortSent
	connection.injected = http2.NewStreamError(connection.opening)
	table.aborting = append(table.aborting, connection)
	if len(table.aborting) > abortsMax {
		table.ofMostAborts().leave(http2.EnhanceYourCalm)
	}
}

// endAbort notes that the early abort has been sent, or never will be.
func (connection *connection) endAbort() {
	if connection.abortSent != nil {
		close(connection.abortSent)
		connection.abortSent = nil
		drop(&connection.table.aborting, connection)
	}
}

// receive notes a frame from the caller.
func (connection *connection) receive(frame http2.Frame) {
	call := connection.calls[frame.Stream]
	switch frame.Kind {
	case http2.Headers:
		connection.isComplete = frame.Flags&http2.EndStream != 0
	case http2.Data:
		if call != nil {
			call.receive(frame.Length-frame.Padding, frame.Padding)
		}
	case http2.Reset:
		connection.countReset()
		if call != nil {
			connection.remove(call)
		}
	}
}

// Write implements io.Writer: it writes all of data, or returns an error.
func (connection *connection) Write(data []byte) (int, error) {
	table := connection.table
	table.mutex.Lock()
	for rest := data; len(rest) > 0; {
		used, began, _ := connection.outbound.Next(rest)
		rest = rest[used:]
		if began {
			connection.send(connection.outbound.Current)
		}
	}
	connection.writingSince.Store(int64(table.now) + 1)
	table.unlock()
	count, err := connection.Conn.Write(data)
	connection.writingSince.Store(0)
	if err != nil {
		connection.Close() // grpc-go writes no more, so Read would wait for ever for an answer to be sent
	}
	return count, err
}

// send notes a frame to the caller.
func (connection *connection) send(frame http2.Frame) {
	call := connection.calls[frame.Stream]
	if frame.Kind == http2.Reset && !connection.isAborted(frame.Stream) {
		connection.countReset()
	}
	if frame.Kind == http2.Reset && frame.Stream == connection.abortedStreams[0] {
		connection.endAbort()
	}
	if call == nil {
		return
	}
	if frame.Kind == http2.Data {
		call.progress(frame.Length)
	}
	isLast := frame.Kind == http2.Headers && frame.Flags&http2.EndStream != 0
	if isLast || frame.Kind == http2.Reset {
		connection.remove(call)
	}
}

// isAborted reports whether a stream that is being reset had an early abort. beginAbort counts that once, but grpc-go may reset the
// stream twice: before beginAbort is called, and until the next such stream is reset.
func (connection *connection) isAborted(stream uint32) bool {
	return connection.isOpening && stream == connection.opening || slices.Contains(connection.abortedStreams[:], stream)
}

// open notes the call whose headers have just come.
func (connection *connection) open(path string, all metadata.MD) *call {
	table := connection.table
	table.mutex.Lock()
	defer table.unlockInTap()
	connection.isOpening = false
	if len(connection.calls) >= 2*table.limits.ConnectionCalls {
		// grpc-go limits those that it has not ended: the others' deadlines had passed, and it queues their statuses for a caller that reads none.
		connection.leave(http2.EnhanceYourCalm)
	}
	method, isKnown := table.limits.Methods[path]
	call := &call{
		connection: connection,
		id:         connection.opening,
		metadata:   all,
		method:     method,
		isKnown:    isKnown,
		received:   time.Now(),
		isComplete: connection.isComplete,
		isReading:  true,
		since:      table.now,
	}
	if connection.hasLeft { // grpc-go does not know it yet
		call.isOver, call.refusal = true, status.New(codes.Unavailable, "the connection has ended")
		return call
	}
	connection.calls[call.id] = call
	if !method.CountsAsIdle {
		connection.busy++
	}
	table.charge(call, callBytes+headers.MemoryBytes(all))
	return call
}

// remove forgets a call that has ended.
func (connection *connection) remove(call *call) {
	call.isOver = true
	connection.table.release(call, call.bytes)
	if connection.calls[call.id] != call {
		return
	}
	delete(connection.calls, call.id)
	if call.method.CountsAsIdle {
		return
	}
	connection.busy--
	if connection.busy == 0 {
		connection.table.idle++
		connection.idle = connection.table.idle
	}
}

// countReset counts a call that was reset, and closes the connection if there are too many: a reset costs the front more than the caller.
func (connection *connection) countReset() {
	limits := &connection.table.limits
	if now := connection.table.now; now-connection.resetStart >= limits.ResetSeconds {
		connection.resetStart, connection.resetCount = now, 0
	}
	connection.resetCount++
	if connection.resetCount > limits.Resets && !connection.hasLeft {
		connection.leave(http2.EnhanceYourCalm)
	}
}

// reset lets grpc-go reset a call at the next opportunity, and drop what it has not sent of it.
func (connection *connection) reset(call *call) {
	connection.table.release(call, call.bytes)
	call.unsent = 0
	if len(connection.resets) == 0 {
		connection.resetSince = connection.table.now
	}
	connection.resets = append(connection.resets, call.id)
	connection.hasResets.Store(true)
	connection.SetReadDeadline(time.Unix(1, 0)) // ends a read that waits
}

// inject lets grpc-go read the frames that reset calls.
func (connection *connection) inject() {
	connection.table.mutex.Lock()
	defer connection.table.unlock()
	for _, stream := range connection.resets {
		connection.injected = append(connection.injected, http2.NewStreamError(stream)...)
	}
	connection.resets = nil
	connection.hasResets.Store(false)
	connection.SetReadDeadline(time.Time{})
}

// tick closes the connection, or ends calls, where a time limit has passed.
func (connection *connection) tick() {
	now, limits := connection.table.now, &connection.table.limits
	since := connection.writingSince.Load()
	isStalled := since > 0 && now+1-int(since) >= limits.StallSeconds
	if isStalled || len(connection.resets) > 0 && now-connection.resetSince >= limits.StallSeconds {
		// grpc-go cannot end the calls: it can write nothing, or waits for the rest of a frame.
		connection.leave(http2.NoError)
		return
	}
	for _, call := range connection.calls {
		call.tick(now, limits)
	}
}

// leave sends GOAWAY and closes the connection, which ends its calls.
func (connection *connection) leave(code uint32) {
	last := http2.NewGoAway(connection.opening, code)
	connection.table.remove(connection)
	if encrypted, ok := connection.Conn.(*secure.Conn); ok {
		encrypted.Leave(last)
		return
	}
	if direct, ok := connection.Conn.(interface{ WriteNow([]byte) }); ok {
		direct.WriteNow(last)
	}
	connection.Conn.Close()
}
