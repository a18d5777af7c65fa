package main

import (
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"gavel/front/internal/refusals"
)

// How many bytes of a stream and of a connection may arrive before they are read. Fixed, since probing for the best size costs pings.
const (
	windowBytes           = 256 << 10
	connectionWindowBytes = 16 << 20
)

// Goroutines that answer calls in turn and keep their grown stacks. Each call beyond this number gets a new goroutine.
const workers = 64

const arbitration = "gavel.v1.ArbitrationService"

// The methods that go over the link, by kind of frame: METHODS of frames.py, in the same order.
var unaryMethods = []string{"SubmitProposal", "BatchSubmitProposals", "Preflight", "BatchPreflight"}

const streamMethod = "StreamProposals"

// newServer returns a server without addresses: the hot path's methods go over the link, all others to inner.
//
// Every method is registered as a stream. For a unary method grpc-go reads the message before it calls the handler, and answers a call without a
// message with UNKNOWN.
func newServer(calls *calls, inner *grpc.ClientConn, limits *limits, stopping <-chan struct{}) *grpc.Server {
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(bytesCodec{}),
		grpc.UnknownServiceHandler(forwarding(inner)),
		grpc.StreamInterceptor(adviseRetry),
		grpc.InTapHandle(tapCall),
		grpc.MaxRecvMsgSize(math.MaxInt32), // each method has its own limit
		grpc.MaxSendMsgSize(limits.SendBytes),
		grpc.MaxHeaderListSize(uint32(limits.HeaderListBytes)),
		grpc.MaxConcurrentStreams(uint32(limits.ConnectionCalls)),
		grpc.ConnectionTimeout(seconds(limits.RequestSeconds)),
		grpc.ReadBufferSize(0), // a connection reads ahead itself
		grpc.SharedWriteBuffer(true),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.NumStreamWorkers(workers),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: seconds(limits.PingSecondsMin), PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: seconds(limits.IdleSeconds),
			Time:              seconds(limits.KeepaliveSeconds),
			Timeout:           seconds(limits.KeepaliveTimeoutSeconds),
		}),
	)
	hot := grpc.ServiceDesc{ServiceName: arbitration, HandlerType: (*any)(nil)}
	for kind, name := range unaryMethods {
		hot.Streams = append(hot.Streams, grpc.StreamDesc{StreamName: name, Handler: calls.unary(byte(kind)), ClientStreams: true})
	}
	hot.Streams = append(hot.Streams, grpc.StreamDesc{
		StreamName:    streamMethod,
		Handler:       calls.streaming(byte(len(unaryMethods)), stopping),
		ServerStreams: true,
		ClientStreams: true,
	})
	server.RegisterService(&hot, struct{}{})
	return server
}

// adviseRetry sends the delay after which a failed call may be tried again in the trailing metadata too, where gRPC's own retries look for it. It drops
// the call's headers: the status may wait for a caller that does not read.
func adviseRetry(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(server, stream)
	stream.Context().Value(callKey{}).(*call).metadata = nil
	if err != nil {
		stream.SetTrailer(refusals.Advice(status.Convert(err)))
	}
	return err
}
