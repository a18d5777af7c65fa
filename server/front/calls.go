package main

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
)

// answer is the server's answer to one request: a frame of kind response or refusal.
type answer struct {
	kind    byte
	number  uint32
	content []byte
}

// pendingCall is a request that waits for its answer. The channel has room for it, so delivering never waits.
type pendingCall struct {
	call       *call       // nil: the request is the front's own
	credential *credential // of a request to authenticate a caller
	answers    chan<- answer
	bytes      int
}

// calls are the requests under way on the link. Each has a number, and one frame with that number answers it. The server is told which callers
// have gone, and drops their requests that are still queued.
type calls struct {
	link     *link.Link
	bytesMax int
	mutex    sync.Mutex
	pending  map[uint32]pendingCall
	number   uint32
	bytes    int // of the pending requests
}

// newCalls returns calls on a link. Set bytesMax, the limit on the bytes of waiting requests, before the first call.
func newCalls(link *link.Link) *calls {
	return &calls{link: link, pending: map[uint32]pendingCall{}}
}

// send sends a request frame to the server and returns its number. The answer arrives on the channel of `pending`. It returns an error if bytesMax
// would be exceeded.
func (calls *calls) send(kind byte, frame []byte, pending pendingCall) (uint32, error) {
	size := len(frame) - link.HeaderBytes
	// Requests of callers that have gone count as well, until the server has read them.
	unsent := calls.link.UnsentBytes()
	calls.mutex.Lock()
	if max(calls.bytes, unsent)+size > calls.bytesMax {
		calls.mutex.Unlock()
		return 0, refusals.Exhausted(fmt.Sprintf("more than %d bytes of requests would wait for the server; try again", calls.bytesMax)).Err()
	}
	calls.number++
	number := calls.number
	pending.bytes = size
	calls.pending[number] = pending
	calls.bytes += size
	calls.mutex.Unlock()
	link.PutHeader(frame, kind, number)
	calls.link.Send(frame)
	return number, nil
}

// deliver hands an answer to the call that waits for it, if one still does. It counts the answer at once, since many may arrive before the first
// of their calls goes on. If that makes the front refuse the call, it drops the content.
func (calls *calls) deliver(kind byte, number uint32, content []byte) {
	pending, found := calls.take(number)
	if !found {
		return
	}
	if kind == link.Response && pending.call != nil && pending.call.prepare(len(content)) != nil {
		content = nil
	}
	answered := answer{kind, number, content}
	if pending.credential != nil {
		pending.credential.take(answered)
	}
	pending.answers <- answered
}

// forget drops a call whose caller has gone, tells the server, and reports whether it was still unanswered.
func (calls *calls) forget(number uint32) bool {
	_, found := calls.take(number)
	if found {
		calls.link.Send(link.NewFrame(link.Cancel, number, ""))
	}
	return found
}

// openStream asks the server for a place among the streams of a caller, and returns the function that gives it back.
func (calls *calls) openStream(ctx context.Context, caller *link.Caller) (func(), error) {
	frame, _ := caller.NewRequest(0)
	answers := make(chan answer, 1)
	number, err := calls.send(link.OpenStream, frame, pendingCall{answers: answers})
	if err != nil {
		return nil, err
	}
	end := func() { calls.link.Send(link.NewFrame(link.Cancel, number, "")) }
	ctx, cancel := withMargin(ctx)
	defer cancel()
	select {
	case answer := <-answers:
		if answer.kind != link.Response {
			return nil, refusals.Decode(answer.content)
		}
		return end, nil
	case <-ctx.Done():
		calls.take(number)
		end()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (calls *calls) take(number uint32) (pendingCall, bool) {
	calls.mutex.Lock()
	defer calls.mutex.Unlock()
	call, found := calls.pending[number]
	if found {
		delete(calls.pending, number)
		calls.bytes -= call.bytes
	}
	return call, found
}

// A pool of channels for one answer each. A channel goes back once its answer was taken or can no longer arrive.
var answerChannels = sync.Pool{New: func() any { return make(chan answer, 1) }}

// unary returns the handler of a method with one request and one answer.
func (calls *calls) unary(kind byte) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		call, err := begin(stream)
		if err != nil {
			return err
		}
		ctx := stream.Context()
		credential, err := call.authenticate(ctx)
		if err != nil {
			return err
		}
		defer credential.release()
		caller, err := call.caller(ctx, credential)
		if err != nil {
			return err
		}
		request := request{caller: &caller}
		if err := call.readRequest(stream, &request); err != nil {
			return err
		}
		if len(request.frame) > call.connection.table.limits.LargeRequestBytes {
			turn, err := call.connection.table.large.begin(ctx, call.connection)
			if err != nil {
				return status.FromContextError(err).Err()
			}
			defer turn.end()
		}
		answers := answerChannels.Get().(chan answer)
		number, err := calls.send(kind, request.frame, pendingCall{call: call, answers: answers})
		if err != nil {
			answerChannels.Put(answers)
			return err
		}
		ctx, cancel := withMargin(ctx)
		defer cancel()
		select {
		case answer := <-answers:
			answerChannels.Put(answers)
			if answer.kind != link.Response {
				return refusals.Decode(answer.content)
			}
			return call.send(stream, content(answer.content))
		case <-ctx.Done():
			if calls.forget(number) {
				answerChannels.Put(answers)
			}
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}
