package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What the requests that wait for the server may hold in memory.
const underWayBytesMax = 256 << 20

// When a caller may come again who was refused by the front itself.
const retryAfter = 200 * time.Millisecond // gavel_server/errors.py: RETRY_AFTER_MS_DEFAULT

// answer is what the server answered to one request: a frame of kind response or refused.
type answer struct {
	kind    byte
	number  uint32
	content []byte
}

// asked is a request that waits for its answer. The channel has room for it: who hands out answers never waits.
type asked struct {
	answers chan<- answer
	bytes   int
}

// calls are the requests under way on the link: each has a number, and hears the one frame that answers it. What a caller who has
// gone would have heard is dropped; the server decides the proposal all the same.
type calls struct {
	link     *link
	bytesMax int
	mutex    sync.Mutex
	waiting  map[uint32]asked
	number   uint32
	bytes    int // of the requests that wait
}

func newCalls(link *link) *calls {
	return &calls{link: link, bytesMax: underWayBytesMax, waiting: map[uint32]asked{}}
}

// ask sends a request to the server and returns its number; the answer comes to `answers`. An error: there is no room for it.
func (calls *calls) ask(kind byte, request request, answers chan<- answer) (uint32, error) {
	size := len(request) - headerBytes
	// The requests of callers who have gone wait as well, until the server has read them.
	unsent := calls.link.unsentBytes()
	calls.mutex.Lock()
	if max(calls.bytes, unsent)+size > calls.bytesMax {
		calls.mutex.Unlock()
		return 0, failure(codes.ResourceExhausted, "QUEUE_FULL", fmt.Sprintf("%d bytes of requests wait for decisions; try again", calls.bytesMax))
	}
	calls.number++
	number := calls.number
	calls.waiting[number] = asked{answers, size}
	calls.bytes += size
	calls.mutex.Unlock()
	putHeader(request, kind, number)
	calls.link.send(request)
	return number, nil
}

// answered hands an answer to the call that waits for it, if one still does.
func (calls *calls) answered(kind byte, number uint32, content []byte) {
	if one, waits := calls.take(number); waits {
		one.answers <- answer{kind, number, content}
	}
}

// forget drops a call whose caller has gone, and says whether its answer had not come yet.
func (calls *calls) forget(number uint32) bool {
	_, waits := calls.take(number)
	return waits
}

func (calls *calls) take(number uint32) (asked, bool) {
	calls.mutex.Lock()
	defer calls.mutex.Unlock()
	one, waits := calls.waiting[number]
	if waits {
		delete(calls.waiting, number)
		calls.bytes -= one.bytes
	}
	return one, waits
}

// Each for one answer; those are used again whose answer was taken, or will never come.
var answerChannels = sync.Pool{New: func() any { return make(chan answer, 1) }}

// unary returns the handler of a method with one request and one answer.
func (calls *calls) unary(kind byte) grpc.MethodHandler {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request request
		if err := decode(&request); err != nil {
			return nil, err
		}
		answers := answerChannels.Get().(chan answer)
		number, err := calls.ask(kind, request, answers)
		if err != nil {
			answerChannels.Put(answers)
			return nil, err
		}
		ctx, cancel := inTime(ctx)
		defer cancel()
		select {
		case answer := <-answers:
			answerChannels.Put(answers)
			if answer.kind != response {
				return nil, refusal(answer.content)
			}
			return content(answer.content), nil
		case <-ctx.Done():
			if calls.forget(number) {
				answerChannels.Put(answers)
			}
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// refusal returns the error that a frame of kind refused holds, a google.rpc.Status with all its details.
func refusal(content []byte) error {
	var refusal statuspb.Status
	if err := proto.Unmarshal(content, &refusal); err != nil {
		return status.Errorf(codes.Internal, "the server's refusal cannot be read: %v", err)
	}
	return status.ErrorProto(&refusal)
}

// failure returns an error of the front's own, with the details that gavel_server/errors.py gives such a one.
func failure(code codes.Code, reason string, message string) error {
	failure, err := status.New(code, message).WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: "gavel"},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)},
	)
	if err != nil {
		return status.Error(code, message)
	}
	return failure.Err()
}
