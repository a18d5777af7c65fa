package main

import (
	"context"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gavel/front/internal/headers"
	"gavel/front/internal/refusals"
	"gavel/front/internal/sockets"
)

// Fixed and small: windows that grow with the traffic let a stream that nobody reads fill this process.
const (
	innerWindowBytes           = 64 << 10
	innerConnectionWindowBytes = 1 << 20
)

// The most by which a deadline may pass earlier at the server, by the server's clock, than here.
const clockDifferenceMax = 100 * time.Millisecond

// The shape of a forwarded call: a stream both ways, which every call fits into. At the server the call has its own shape.
var anyShape = &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}

// newInner returns a channel to the server's own gRPC, on its private unix socket.
func newInner(address string, limits *limits) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(address, sockets.UnixPrefix)
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return sockets.NewDirect(connection), nil
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
			grpc.MaxCallRecvMsgSize(limits.SendBytes),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
	)
}

// forwarding returns a handler that passes every call on to the server's own gRPC, with its deadline, its metadata and the caller's address,
// and answers as the server does: metadata as soon as the server sends it, messages, status and trailers. However one side ends a call, it
// ends for the other.
func forwarding(inner *grpc.ClientConn) grpc.StreamHandler {
	return func(_ any, caller grpc.ServerStream) error {
		call, err := begin(caller)
		if err != nil {
			return err
		}
		if err := headers.Check(call.metadata, call.connection.table.limits.HeaderBytes); err != nil {
			return err
		}
		credential, err := call.authenticate(caller.Context())
		if err != nil {
			return err
		}
		defer credential.release()
		request := request{}
		if !call.method.ClientStreaming {
			// The call is opened at the server only once its message has arrived.
			if err := call.readRequest(caller, &request); err != nil {
				return err
			}
		}
		outgoing := headers.Own(call.metadata)
		outgoing.Set(headers.PeerKey, call.connection.peer)
		outgoing.Set(headers.ReceivedKey, strconv.FormatInt(call.received.UnixNano(), 10))
		if secret := call.connection.table.identity.Secret; secret != "" {
			outgoing.Set(headers.SecretKey, secret)
			outgoing.Set(headers.HandleKey, strconv.FormatUint(uint64(credential.handle), 10))
		}
		timed, cancelTimed := withMargin(caller.Context())
		defer cancelTimed()
		ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(timed, outgoing))
		defer cancel()
		turn, err := call.connection.table.forwarded.begin(ctx, call.connection)
		if err != nil {
			return status.FromContextError(err).Err()
		}
		defer turn.end()
		path, _ := grpc.MethodFromServerStream(caller)
		server, err := inner.NewStream(ctx, anyShape, path)
		if err != nil {
			return callerStatus(caller.Context(), ownStatus(ctx, err))
		}
		unreadable := make(chan error, 1)
		if call.method.ClientStreaming {
			go func() {
				if err := call.passRequests(caller, server); err != nil {
					unreadable <- err
					cancel()
				}
			}()
		} else if server.SendMsg(&request.message) == nil {
			server.CloseSend() // passResponses returns how the call ended
		}
		err = call.passResponses(server, caller, turn)
		caller.SetTrailer(headers.Own(server.Trailer()))
		select {
		case err := <-unreadable:
			return err
		default:
			return callerStatus(caller.Context(), ownStatus(ctx, err))
		}
	}
}

// ownStatus returns err, or an error of the front's own in place of one that the channel to the server has made: that one names the server's private
// socket. The server's own errors have details if they are UNAVAILABLE.
func ownStatus(ctx context.Context, err error) error {
	refusal := status.Convert(err)
	if len(refusal.Details()) > 0 {
		return err
	}
	if ctx.Err() != nil && (refusal.Code() == codes.DeadlineExceeded || refusal.Code() == codes.Canceled) {
		return status.FromContextError(ctx.Err()).Err()
	}
	if refusal.Code() == codes.Unavailable {
		return refusals.Retriable(codes.Unavailable, "SHUTTING_DOWN", "the server does not answer, or is being started; try again").Err()
	}
	return err
}

// callerStatus returns how a call ended for the caller. The server looks at the deadline too, and cancels a call that is over; its clock may
// be a little ahead.
func callerStatus(caller context.Context, err error) error {
	deadline, has := caller.Deadline()
	if has && status.Code(err) == codes.Canceled && time.Until(deadline) < clockDifferenceMax {
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	return err
}

// passRequests passes on the caller's messages until the caller has sent all, or the server wants no more. It returns an error if a message
// cannot be read.
func (call *call) passRequests(caller grpc.ServerStream, server grpc.ClientStream) error {
	for {
		call.readOn()
		var request request
		if err := call.read(caller, &request); err == io.EOF {
			return server.CloseSend()
		} else if err != nil {
			return err
		}
		if err := server.SendMsg(&request.message); err != nil {
			return nil // passResponses returns how the call ended
		}
		call.settle(&request)
	}
}

// passResponses passes on the server's messages, and returns the status with which the call ended.
func (call *call) passResponses(server grpc.ClientStream, caller grpc.ServerStream, turn *turn) error {
	// Some methods send headers before the first message: they tell a caller that it is subscribed, or the front that the call waits.
	header, err := server.Header()
	turn.end() // the first work is done; what follows takes turns at the server
	if err == nil && header != nil && len(header.Get(headers.WaitsKey)) == 0 {
		if err := caller.SendHeader(headers.Own(header)); err != nil {
			return err
		}
	}
	for {
		var message rawMessage
		if err := server.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := call.prepare(message.data.Len()); err != nil {
			return err
		}
		if err := call.send(caller, &message); err != nil {
			return err
		}
	}
}
