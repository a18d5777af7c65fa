package main

import (
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Of one stream: requests that were read and whose answers have not been sent. What else a caller sends waits with him.
const streamRequestsMax = 512

// stream is one StreamProposals under way: each of its requests is asked by itself and answered as soon as its answer is there. It
// ends when everything in it is answered, or with a status when no request of it could be any more (gavel_server/streaming.py).
type stream struct {
	grpc.ServerStream
	calls   *calls
	kind    byte
	answers chan answer
	room    chan struct{} // holds one for each request whose answer has not been sent

	mutex   sync.Mutex
	waiting map[uint32]struct{} // numbers of what was asked and is not answered
	closed  bool                // nothing more is asked
}

// streaming returns the handler of a method whose every request has its own answer. Once `stopping` is closed no more are read.
func (calls *calls) streaming(kind byte, stopping <-chan struct{}) grpc.StreamHandler {
	return func(_ any, caller grpc.ServerStream) error {
		stream := stream{
			ServerStream: caller,
			calls:        calls,
			kind:         kind,
			answers:      make(chan answer, streamRequestsMax),
			room:         make(chan struct{}, streamRequestsMax),
			waiting:      map[uint32]struct{}{},
		}
		defer stream.forget()
		return stream.run(stopping)
	}
}

// run hands out answers until there are no more, and returns how the stream ends.
func (stream *stream) run(stopping <-chan struct{}) error {
	read := make(chan error, 1)
	go func() { read <- stream.read() }()
	ctx, cancel := inTime(stream.Context())
	defer cancel()
	var refused, ending error
	for reading := true; reading || stream.unanswered() > 0; {
		select {
		case answer := <-stream.answers:
			stream.answered(answer.number)
			if answer.kind == response {
				if err := stream.SendMsg(content(answer.content)); err != nil {
					return err
				}
			} else if refused == nil {
				refused = refusal(answer.content)
				stream.close()
				reading = false
			}
			<-stream.room
		case ending = <-read:
			reading, read, stopping = false, nil, nil
		case <-stopping:
			ending = failure(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down; go on at another one")
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

// read asks for the answer to every request, until the caller has sent all, or nothing more is asked. It returns why it cannot go on.
func (stream *stream) read() error {
	for {
		var request request
		if err := stream.RecvMsg(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case stream.room <- struct{}{}:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if asked, err := stream.ask(request); !asked || err != nil {
			return err
		}
	}
}

func (stream *stream) ask(request request) (bool, error) {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	if stream.closed {
		return false, nil
	}
	number, err := stream.calls.ask(stream.kind, request, stream.answers)
	if err == nil {
		stream.waiting[number] = struct{}{}
	}
	return true, err
}

func (stream *stream) answered(number uint32) {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	delete(stream.waiting, number)
}

func (stream *stream) unanswered() int {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	return len(stream.waiting)
}

func (stream *stream) close() {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	stream.closed = true
}

// forget drops what is under way: nobody listens any more.
func (stream *stream) forget() {
	stream.mutex.Lock()
	defer stream.mutex.Unlock()
	stream.closed = true
	for number := range stream.waiting {
		stream.calls.forget(number)
	}
}
