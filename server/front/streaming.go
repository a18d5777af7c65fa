package main

import (
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
)

// How many requests of one stream may be read and unanswered. Flow control holds back further requests.
const streamRequestsMax = 512

// stream is one StreamProposals under way: each request in it is sent to the server separately and answered as soon as its answer arrives.
// The server counts it among its caller's streams. It ends when each request in it is answered, or with a status once no further request can be (gavel_server/rpc/streaming.py).
type stream struct {
	grpc.ServerStream
	calls      *calls
	call       *call
	credential *credential
	caller     link.Caller
	kind       byte
	answers    chan answer
	room       chan struct{} // holds one for each request whose answer has not been sent

	mutex   sync.Mutex
	pending map[uint32]*request // unanswered requests, by number
	closed  bool                // no further request is sent
}

// streaming returns the handler of a method that answers each request of a stream separately. Once stopping is closed it reads no more.
func (calls *calls) streaming(kind byte, stopping <-chan struct{}) grpc.StreamHandler {
	return func(_ any, serverStream grpc.ServerStream) error {
		call, err := begin(serverStream)
		if err != nil {
			return err
		}
		credential, err := call.authenticate(serverStream.Context())
		if err != nil {
			return err
		}
		defer credential.release()
		caller, err := call.caller(serverStream.Context(), credential)
		if err != nil {
			return err
		}
		caller.Received = time.Time{} // each request has its own
		end, err := calls.openStream(serverStream.Context(), &caller)
		if err != nil {
			return err
		}
		defer end()
		stream := stream{
			ServerStream: serverStream,
			calls:        calls,
			call:         call,
			credential:   credential,
			caller:       caller,
			kind:         kind,
			answers:      make(chan answer, streamRequestsMax),
			room:         make(chan struct{}, streamRequestsMax),
			pending:      map[uint32]*request{},
		}
		defer stream.forget()
		return stream.run(stopping)
	}
}

// run sends answers until there are no more, and returns how the stream ends.
func (stream *stream) run(stopping <-chan struct{}) error {
	read := make(chan error, 1)
	go func() { read <- stream.read() }()
	ctx, cancel := withMargin(stream.Context())
	defer cancel()
	over := stream.credential.ctx.Done()
	var refused, ending error
	for reading := true; reading || stream.unanswered() > 0; {
		select {
		case answer := <-stream.answers:
			stream.settle(answer.number)
			if answer.kind == link.Response {
				if err := stream.call.send(stream.ServerStream, content(answer.content)); err != nil {
					return err
				}
			} else if refused == nil {
				refused = refusals.Decode(answer.content)
				stream.close()
				reading = false
			}
			<-stream.room
		case <-over:
			if refused == nil {
				refused = stream.credential.reason.Err()
			}
			stream.close()
			reading, read, stopping, over = false, nil, nil, nil
		case ending = <-read:
			reading, read, stopping = false, nil, nil
		case <-stopping:
			ending = refusals.Retriable(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down; try again, or use another server").Err()
			stream.close()
			reading, read, stopping = false, nil, nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	if refused != nil {
		return refused
	}
	return ending
}

// read sends every request to the server until the caller has sent all or the stream is closed. It returns an error if it cannot go on.
func (stream *stream) read() error {
	for {
		stream.call.readOn()
		request := request{caller: &stream.caller}
		if err := stream.call.read(stream.ServerStream, &request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case stream.room <- struct{}{}:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if len(request.frame) > stream.call.connection.table.limits.LargeRequestBytes {
			turn, err := stream.call.connection.table.large.begin(stream.Context(), stream.call.connection)
			if err != nil {
				return err
			}
			request.turn = turn
		}
		if sent, err := stream.send(&request); !sent || err != nil {
			request.endTurn()
			return err
		}
	}
}

// send sends a request to the server, and reports whether the stream was still open.
func (stream *stream) send(request *request) (bool, error) {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	if stream.closed {
		return false, nil
	}
	number, err := stream.calls.send(stream.kind, request.frame, pendingCall{call: stream.call, answers: stream.answers})
	if err == nil {
		request.frame = nil // the link has it now
		stream.pending[number] = request
	}
	return true, err
}

// settle drops an answered request from the pending ones and releases its bytes.
func (stream *stream) settle(number uint32) {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	if request, found := stream.pending[number]; found {
		delete(stream.pending, number)
		request.endTurn()
		stream.call.settle(request)
	}
}

// unanswered returns the number of pending requests.
func (stream *stream) unanswered() int {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	return len(stream.pending)
}

// close makes `send` refuse further requests.
func (stream *stream) close() {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	stream.closed = true
}

// forget drops the pending requests: the stream has ended.
func (stream *stream) forget() {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	stream.closed = true
	for number, request := range stream.pending {
		request.endTurn()
		stream.calls.forget(number)
	}
}
