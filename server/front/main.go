// Gavel-front is Gavel's native front: a process that speaks gRPC for the server and decides nothing.
//
// The server starts it with one end of a socket pair. Calls of the hot path go over that link as frames (internal/link, calls.go,
// streaming.go), together with the caller's address, metadata and deadline. All other calls are forwarded to the server's own gRPC
// (forwarding.go). connection.go, connections.go and call.go limit what callers hold in memory. Apart from these limits, callers cannot tell it
// from a server without a front (docs/decisions/0031-two-transports.md).
//
// It ends when the link closes, which the kernel does however the server ends. It writes no log; the server logs what happens to it.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"

	"gavel/front/internal/link"
	"gavel/front/internal/sockets"
)

// The protocol of the link: PROTOCOL of frames.py, which says what it covers. The first argument and the frame UNBOUND never change, so that a
// program of another protocol can say so.
const linkProtocol = "7"

// How long calls under way may take once the server says stop.
const stopGrace = 5 * time.Second

func main() {
	// With one processor no goroutine wakes a thread to take over from another one, which costs a third of a call. One processor takes many
	// more calls than a server can answer.
	runtime.GOMAXPROCS(1)
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "gavel-front: started by hand; run `gavel serve`, which starts it")
		os.Exit(2)
	}
	// Where server and front both get a signal, the front still has the last answers to send; the server ends it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	end, err := takeEnd(os.Args[2])
	if err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: file descriptor %s is not a Unix socket: %v; run `gavel serve`, which starts gavel-front\n", os.Args[2], err)
		os.Exit(2)
	}
	orders := newOrders()
	server := link.New(sockets.NewDirect(end))
	calls := newCalls(server)
	if os.Args[1] != linkProtocol || len(os.Args) != 5 {
		end.Write(link.NewFrame(link.Unbound, 0, "gavel-front was built for another version of gavel; run make front"))
		return
	}
	go server.Write()
	go obey(server, calls, orders)
	listeners, address, err := sockets.Listen(os.Args[3])
	if err != nil {
		end.Write(link.NewFrame(link.Unbound, 0, err.Error()))
		return
	}
	server.Send(link.NewFrame(link.Bound, 0, address))
	connections := <-orders.serve
	if connections == nil {
		fmt.Fprintf(os.Stderr, "gavel-front: the server's order to serve cannot be read: %v\n", orders.err)
		os.Exit(2)
	}
	limits := &connections.limits
	calls.bytesMax = limits.BytesInFlight
	// The runtime counts the ballast, though it is not resident.
	debug.SetMemoryLimit(int64(limits.MemoryBytes + ballastBytes))
	ballast := make([]byte, ballastBytes)
	inner, err := newInner(os.Args[4], limits)
	if err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: %s is not an address: %v\n", os.Args[4], err)
		os.Exit(2)
	}
	go connections.watch(orders.stop)
	if err := run(newServer(calls, inner, limits, orders.stop), connections, listeners, orders.stop); err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: %v\n", err)
		os.Exit(1)
	}
	runtime.KeepAlive(ballast)
}

// obey takes the server's orders and answers until the link closes, and then ends the process.
func obey(server *link.Link, calls *calls, orders *orders) {
	var table *connections // once the server has ordered to serve
	server.Read(func(kind byte, number uint32, content []byte) {
		switch kind {
		case link.Serve:
			table = orders.takeServe(content, calls)
		case link.Stop:
			orders.takeStop()
		case link.Ping:
			server.Send(link.NewFrame(link.Pong, 0, ""))
		case link.Revoke:
			table.revoke(number, string(content))
		case link.TLS:
			table.identity.useTLS(content)
		default:
			calls.deliver(kind, number, content)
		}
	})
	// Without the server there is nothing to finish, and the address is free at once for the next server.
	os.Exit(0)
}

// run answers calls until the server says stop, then gives those under way stopGrace. It returns an error if callers can no longer connect:
// the server starts a new front then.
func run(server *grpc.Server, connections *connections, listeners []net.Listener, stop <-chan struct{}) error {
	failed := make(chan error, len(listeners))
	for _, listener := range listeners {
		go func() { failed <- server.Serve(limitedListener{listener, connections}) }()
	}
	select {
	case <-stop:
	case err := <-failed:
		return err
	}
	time.AfterFunc(stopGrace, func() {
		server.Stop()
		os.Exit(0)
	})
	server.GracefulStop()
	return nil
}

// takeEnd returns the connection of an inherited descriptor.
func takeEnd(descriptor string) (*net.UnixConn, error) {
	number, err := strconv.Atoi(descriptor)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(number), "link")
	defer file.Close()
	connection, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	end, ok := connection.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("it is a %T", connection)
	}
	return end, nil
}
