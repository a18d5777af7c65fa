package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"gavel/front/internal/headers"
	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
)

// Bytes of further messages that may arrive on a stream while one is read: what flow control lets through.
const unreadBytesMax = 2 * windowBytes

// A caller must read this many bytes of the answers that wait for it within the time of a stall, or all if they are fewer. gRPC's clients say
// only now and then that they have read on, some after half a window of 64 KiB.
const stallBytesMin = 16 << 10

// What each call under way takes besides its headers and messages, roughly: grpc-go's stream, the goroutine and timer of its handler. Without this,
// calls without a message would be limited by their number alone, on all connections together to more than a gigabyte.
const callBytes = 8 << 10

// call is one call of a caller and what it holds in memory. Fields without a comment are guarded by the mutex of connections.
type call struct {
	connection *connection // constant
	id         uint32      // constant: its HTTP/2 stream
	metadata   metadata.MD // the caller's headers; used by the handler only
	method     method      // constant
	isKnown    bool        // constant: there is such a method
	received   time.Time   // constant: when its headers were read
	isComplete bool        // constant: it ended with its headers

	stream    transportStream // once a handler has the call
	refusal   *status.Status  // why the front has ended it
	isOver    bool
	bytes     int  // in flight: callBytes, and those of headers, of messages that came, and of answers that are not sent
	unread    int  // bytes that came and belong to no message that was read
	padding   int  // bytes that came between them
	unsent    int  // bytes of answers that are not sent
	isReading bool // the handler waits for a message
	since     int  // when the message was first waited for, or its first bytes came
	stalled   int  // since when too little of the answers was sent
	owed      int  // bytes of answers that the caller must read within the time of a stall, from `stalled` on
}

// transportStream is the part of grpc-go's stream of a call that its public interface leaves out.
type transportStream interface {
	WriteStatus(*status.Status) error // ends the call, whatever its handler does
	SetSendCompress(string) error
	SetTrailer(metadata.MD) error
}

// callKey is the key of a call in its context.
type callKey struct{}

// tapCall registers each call before it is handled. It refuses none, because grpc-go would keep the timer of a refused call until the call's
// deadline.
func tapCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	from, _ := peer.FromContext(ctx)
	all := info.Header
	if ctx.Err() != nil { // its deadline has passed: it gets no handler, which would drop the headers
		all = nil
	}
	return context.WithValue(ctx, callKey{}, from.Addr.(callerAddress).connection.open(info.FullMethodName, all)), nil
}

// begin returns the call of a handler's stream, or the error with which the call is refused.
func begin(stream grpc.ServerStream) (*call, error) {
	ctx := stream.Context()
	call := ctx.Value(callKey{}).(*call)
	transport := grpc.ServerTransportStreamFromContext(ctx).(transportStream)
	// Answers are never compressed: compression costs more than it saves so close to the server.
	if err := transport.SetSendCompress(""); err != nil {
		return nil, status.FromContextError(context.Canceled).Err()
	}
	call.connection.table.mutex.Lock()
	defer call.connection.table.unlock()
	call.stream = transport
	if !call.isKnown && call.refusal == nil {
		call.refusal = status.New(codes.Unimplemented, "Method not found!")
	}
	return call, call.refusal.Err()
}

// caller returns the part of a request frame that describes the caller, or an error if its headers cannot be passed on.
func (call *call) caller(ctx context.Context, credential *credential) (link.Caller, error) {
	if err := headers.Check(call.metadata, call.connection.table.limits.HeaderBytes); err != nil {
		return link.Caller{}, err
	}
	return link.NewCaller(ctx, call.received, call.connection.peer, call.metadata, credential.handle), nil
}

// readRequest reads the one message of a call.
func (call *call) readRequest(stream grpc.ServerStream, request *request) error {
	err := call.read(stream, request)
	if err == io.EOF {
		return refusals.Invalid("request", "is missing: the call ended without a message").Err()
	}
	return err
}

// read reads the caller's next message. It returns io.EOF if the caller has sent all, else a status.
func (call *call) read(stream grpc.ServerStream, request *request) error {
	if call.isComplete { // grpc-go would wait for a frame of data
		return io.EOF
	}
	request.limit, request.decompressions = call.method.RequestBytes, call.connection.table.decompressions
	err := stream.RecvMsg(request)
	table := call.connection.table
	table.mutex.Lock()
	defer table.unlock()
	if call.refusal != nil {
		return call.refusal.Err()
	}
	if err != nil {
		return err
	}
	call.isReading = false
	if request.refusal != nil {
		return request.refusal.Err()
	}
	call.unread -= request.wireBytes
	if call.unread <= 0 && !call.isOver {
		table.release(call, call.padding)
		call.padding = 0
	}
	if more := request.size - request.wireBytes; more > 0 && !call.isOver {
		table.charge(call, more)
	}
	return call.refusal.Err()
}

// readOn notes that the handler waits for the next message.
func (call *call) readOn() {
	call.connection.table.mutex.Lock()
	defer call.connection.table.unlock()
	call.isReading, call.since = true, call.connection.table.now
}

// settle releases the bytes of a message that was read and is no longer in memory.
func (call *call) settle(request *request) {
	call.connection.table.mutex.Lock()
	defer call.connection.table.unlock()
	if !call.isOver && call.refusal == nil {
		call.connection.table.release(call, max(request.size, request.wireBytes))
	}
}

// send sends an answer that `prepare` has counted, and waits while the caller does not read.
func (call *call) send(stream grpc.ServerStream, answer any) error {
	if err := call.reason(nil); err != nil {
		return err
	}
	if err := stream.SendMsg(answer); err != nil {
		return call.reason(err)
	}
	return nil
}

// prepare counts the bytes of an answer that is about to be sent, and returns an error if the call is refused.
func (call *call) prepare(bytes int) error {
	bytes += messageHeaderBytes
	table := call.connection.table
	table.mutex.Lock()
	defer table.unlock()
	if call.isOver || call.refusal != nil {
		return call.refusal.Err()
	}
	if call.unsent == 0 {
		call.owe(bytes)
	}
	call.unsent += bytes
	table.charge(call, bytes)
	if call.refusal != nil { // the answer will not be sent
		bytes = min(bytes, call.unsent)
		call.unsent -= bytes
		table.release(call, bytes)
	}
	return call.refusal.Err()
}

// reason returns why the front has ended the call, or err if it has not.
func (call *call) reason(err error) error {
	call.connection.table.mutex.Lock()
	defer call.connection.table.unlock()
	if call.refusal != nil {
		return call.refusal.Err()
	}
	return err
}

// receive counts bytes of a message that have arrived, and their padding, and refuses the call if they exceed a limit. grpc-go holds the padding as
// long as the message.
func (call *call) receive(bytes int, padding int) {
	if call.refusal != nil {
		return
	}
	if call.unread == 0 && bytes > 0 {
		call.since = call.connection.table.now
	}
	call.unread += bytes
	call.padding += padding
	limit := call.method.RequestBytes + messageHeaderBytes
	if call.method.ClientStreaming {
		limit += unreadBytesMax
	}
	if call.isKnown && call.unread+call.padding > limit {
		call.refuse(refusals.TooLarge(call.method.RequestBytes))
		return
	}
	call.connection.table.charge(call, bytes+padding)
}

// progress counts bytes of answers as sent. A few bytes now and then do not count as reading: the time begins anew once all that is owed was sent.
func (call *call) progress(bytes int) {
	bytes = min(bytes, call.unsent)
	call.unsent -= bytes
	call.connection.table.release(call, bytes)
	if call.owed -= bytes; call.owed <= 0 {
		call.owe(call.unsent)
	}
}

// owe begins the time in which the caller must read a part of the answers.
func (call *call) owe(unsent int) {
	table := call.connection.table
	call.stalled, call.owed = table.now, min(unsent, stallBytesMin)
}

// refuse ends the call for its caller and its handler. Unsent answers stay in memory until they are sent or the call is reset.
func (call *call) refuse(reason *status.Status) {
	if call.refusal != nil || call.isOver {
		return
	}
	call.refusal = reason
	table := call.connection.table
	table.release(call, call.bytes-call.unsent)
	if call.stream != nil {
		table.ended = append(table.ended, call)
	}
}

// tick refuses a call whose message does not arrive, or whose answers are not read. If unread answers keep the refusal from being sent, tick
// resets the call later.
func (call *call) tick(now int, limits *limits) {
	isWaiting := call.isReading && (call.unread > 0 || !call.method.ClientStreaming)
	if isWaiting && now-call.since >= limits.RequestSeconds {
		call.refuse(refusals.Exhausted(fmt.Sprintf("the request did not arrive within %d s; try again", limits.RequestSeconds)))
	}
	if call.unsent > 0 && now-call.stalled >= limits.StallSeconds {
		if call.refusal != nil {
			call.connection.reset(call)
		}
		call.refuse(refusals.Exhausted(fmt.Sprintf("the answers were not read for %d s; read them as they arrive", limits.StallSeconds)))
		call.owe(call.unsent)
	}
}
