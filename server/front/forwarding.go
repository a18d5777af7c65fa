package main

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Its windows stay small: those that grow with the traffic let a stream that nobody reads fill this process.
const (
	innerWindowBytes           = 64 << 10
	innerConnectionWindowBytes = 1 << 20
)

// How much earlier than here a deadline may be over at the server.
const clocksDiffer = 100 * time.Millisecond

// What of a call's metadata, as HTTP/2 counts it, is passed on. C-based gRPC, which the server's own is, takes 16 KiB, with what gRPC
// adds for every call; grpc-go would not send more to it, and call that an error of its own.
const metadataBytesMax = 15 << 10

// A call that is passed on has its own shape at the server; here all are streams both ways, which any of them fits into.
var passedOn = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// newInner returns a channel to the server's own gRPC, on a unix socket.
func newInner(address string) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(address, unixPrefix)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return quickly(connection), nil
	}
	return grpc.NewClient(
		"passthrough:///"+path,
		grpc.WithContextDialer(dial),
		grpc.WithAuthority("localhost"), // as for any unix socket
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(innerWindowBytes),
		grpc.WithInitialConnWindowSize(innerConnectionWindowBytes),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(bytesCodec{}),
			grpc.MaxCallRecvMsgSize(sendBytesMax),
			grpc.MaxCallSendMsgSize(receiveBytesMax),
		),
	)
}

// forwarding returns a handler that passes every call on, with its deadline and metadata, and answers as it was answered: metadata as
// soon as the server sends it, messages, status and trailers. However one side ends a call, it ends for the other.
func forwarding(inner *grpc.ClientConn) grpc.StreamHandler {
	return func(_ any, caller grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(caller)
		incoming, _ := metadata.FromIncomingContext(caller.Context())
		given := ofCallers(incoming)
		if size := metadataBytes(given); size > metadataBytesMax {
			return status.Errorf(codes.ResourceExhausted, "received metadata size exceeds limit (%d vs. %d)", size, metadataBytesMax)
		}
		timed, cancelTimed := inTime(caller.Context())
		defer cancelTimed()
		ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(timed, given))
		defer cancel()
		server, err := inner.NewStream(ctx, passedOn, method)
		if err != nil {
			return err
		}
		unread := make(chan error, 1)
		go func() {
			if err := passRequests(caller, server); err != nil {
				unread <- err
				cancel()
			}
		}()
		err = passAnswers(server, caller)
		caller.SetTrailer(ofCallers(server.Trailer()))
		select {
		case why := <-unread:
			return why
		default:
			return ended(caller.Context(), err)
		}
	}
}

// ended returns how a call ended for the caller. The server looks at the deadline too, and cancels a call that is over; its clock may be
// a little ahead.
func ended(caller context.Context, err error) error {
	deadline, has := caller.Deadline()
	if has && status.Code(err) == codes.Canceled && time.Until(deadline) < clocksDiffer {
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return err
}

// passRequests passes on what the caller sends, until he has sent all, or the server wants no more. An error: it cannot be read.
func passRequests(caller grpc.ServerStream, server grpc.ClientStream) error {
	for {
		var message passed
		if err := caller.RecvMsg(&message); err == io.EOF {
			return server.CloseSend()
		} else if err != nil {
			return err
		}
		if err := server.SendMsg(&message); err != nil {
			return nil // how the call ended is heard with the answers
		}
	}
}

// passAnswers passes on what the server answers, and returns with what status it ended.
func passAnswers(server grpc.ClientStream, caller grpc.ServerStream) error {
	// Some methods send it before there is anything to answer: so a caller knows that it is subscribed.
	if header, err := server.Header(); err == nil && header != nil {
		if err := caller.SendHeader(ofCallers(header)); err != nil {
			return err
		}
	}
	for {
		var message passed
		if err := server.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := caller.SendMsg(&message); err != nil {
			return err
		}
	}
}

// ofCallers returns metadata without what gRPC makes itself for every call.
func ofCallers(given metadata.MD) metadata.MD {
	kept := make(metadata.MD, len(given))
	for key, values := range given {
		switch {
		case key == "user-agent", key == "te", key == "content-type", strings.HasPrefix(key, ":"), strings.HasPrefix(key, "grpc-"):
		default:
			kept[key] = values
		}
	}
	return kept
}

// metadataBytes returns the size of metadata as HTTP/2 counts it: each field's name and value, and 32.
func metadataBytes(given metadata.MD) int {
	size := 0
	for key, values := range given {
		for _, value := range values {
			length := len(value)
			if strings.HasSuffix(key, "-bin") {
				length = base64.RawStdEncoding.EncodedLen(length)
			}
			size += len(key) + length + 32
		}
	}
	return size
}
