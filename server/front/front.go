package main

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Limits of messages and pings: gavel_server/transport.py says why.
const (
	receiveBytesMax = 16 << 20
	sendBytesMax    = 64 << 20
	pingsApartMin   = 10 * time.Second
)

// More metadata costs a caller his connection. What is less, and too much for the server, is that call's error.
const headerListBytesMax = 1 << 20

// What of a stream may come in before it is read; fixed, since finding the best size costs pings.
const (
	windowBytes           = 256 << 10
	connectionWindowBytes = 16 << 20
)

// Goroutines that answer calls one after the other, with a stack that has grown once; more calls at once have one each.
const workers = 64

const arbitration = "gavel.v1.ArbitrationService"

// The methods that go over the link, by kind of frame; link.py has them in the same order.
var unaryMethods = []string{"SubmitProposal", "BatchSubmitProposals", "Preflight", "BatchPreflight"}

const streamMethod = "StreamProposals"

// newServer returns a server, without addresses, of the hot path's methods and of all others by way of `inner`.
func newServer(calls *calls, inner *grpc.ClientConn, stopping <-chan struct{}) *grpc.Server {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(bytesCodec{}),
		grpc.UnknownServiceHandler(forwarding(inner)),
		grpc.InTapHandle(refuseNoMethods),
		grpc.MaxRecvMsgSize(receiveBytesMax),
		grpc.MaxSendMsgSize(sendBytesMax),
		grpc.MaxHeaderListSize(headerListBytesMax),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.NumStreamWorkers(workers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsApartMin, PermitWithoutStream: true}),
	)
	hot := grpc.ServiceDesc{ServiceName: arbitration, HandlerType: (*any)(nil)}
	for kind, name := range unaryMethods {
		hot.Methods = append(hot.Methods, grpc.MethodDesc{MethodName: name, Handler: calls.unary(byte(kind))})
	}
	hot.Streams = []grpc.StreamDesc{{
		StreamName:    streamMethod,
		Handler:       calls.streaming(byte(len(unaryMethods)), stopping),
		ServerStreams: true,
		ClientStreams: true,
	}}
	server.RegisterService(&hot, struct{}{})
	return server
}

// refuseNoMethods answers what names no service's method as the server would: grpc-go has words of its own for it.
func refuseNoMethods(ctx context.Context, call *tap.Info) (context.Context, error) {
	if strings.LastIndexByte(call.FullMethodName, '/') <= 0 {
		return ctx, status.Error(codes.Unimplemented, "Method not found!")
	}
	return ctx, nil
}
