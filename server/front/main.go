// Gavel's native front: a process that speaks gRPC for the server, and knows nothing of what calls mean.
//
// The server starts it with an end of a socket pair. Calls of the hot path go over that link as frames (link.go, calls.go,
// streaming.go), every other call is passed on to the server's own gRPC (forwarding.go). It is the front of
// server/gavel_server/front once more, for machines that have Go when Gavel is built: callers cannot tell one from the other.
//
// It ends when the link hangs up, which the kernel sees to however the server ends. It writes no log: what there is to say of its
// life, the server says.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
)

// What both ends of the link must agree on: arguments, frames, methods. The first argument and the frame UNBOUND stay as they are
// for ever, so that a program that was built for another version can say so.
const linkProtocol = "1"

// How long calls under way may take once the server says stop.
const stopGrace = 5 * time.Second

const ballastBytes = 32 << 20

func main() {
	// With one processor no goroutine wakes a thread to take over from another, which costs a third of a call. It can take many more
	// calls than a server can answer.
	runtime.GOMAXPROCS(1)
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "gavel-front: `gavel serve` starts this; it is of no use by itself")
		os.Exit(2)
	}
	// Where both are sent one, the front still has the last answers to hand out: the server ends it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	end, err := takeEnd(os.Args[2])
	if err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: %s is no end of a link: %v\n", os.Args[2], err)
		os.Exit(2)
	}
	told := newTold()
	server := newLink(quickly(end))
	waiting := newCalls(server)
	if os.Args[1] != linkProtocol || len(os.Args) != 5 {
		end.Write(frameOf(unbound, 0, "gavel-front was built for another version of gavel; run make front"))
		return
	}
	go server.write()
	go func() {
		server.read(func(kind byte, number uint32, content []byte) {
			switch kind {
			case serve, stop:
				told.hear(kind)
			case ping:
				server.send(frameOf(pong, 0, ""))
			default:
				waiting.answered(kind, number, content)
			}
		})
		// Without the server there is nothing to finish, and the address is free at once for the one that follows it.
		os.Exit(0)
	}()
	listeners, address, err := listenOn(os.Args[3])
	if err != nil {
		end.Write(frameOf(unbound, 0, err.Error()))
		return
	}
	server.send(frameOf(bound, 0, address))
	<-told.serve
	// Nearly nothing lives longer than a call: memory that is never touched makes the collector wait for as much garbage.
	ballast := make([]byte, ballastBytes)
	inner, err := newInner(os.Args[4])
	if err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: %s is no address: %v\n", os.Args[4], err)
		os.Exit(2)
	}
	if err := run(newServer(waiting, inner, told.stop), listeners, told.stop); err != nil {
		fmt.Fprintf(os.Stderr, "gavel-front: %v\n", err)
		os.Exit(1)
	}
	runtime.KeepAlive(ballast)
}

// run answers calls until the server says stop; those under way then have a grace. An error: callers can no longer connect, and a front
// that is started anew is worth more.
func run(server *grpc.Server, listeners []net.Listener, stop <-chan struct{}) error {
	failed := make(chan error, len(listeners))
	for _, listener := range listeners {
		go func() { failed <- server.Serve(quickListener{listener}) }()
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

// takeEnd returns the connection that an inherited descriptor is.
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

// told is what the server has told the front to do: each channel is closed when it has.
type told struct {
	serve, stop         chan struct{}
	serveOnce, stopOnce sync.Once
}

func newTold() *told {
	return &told{serve: make(chan struct{}), stop: make(chan struct{})}
}

func (told *told) hear(kind byte) {
	if kind == serve {
		told.serveOnce.Do(func() { close(told.serve) })
	} else {
		told.stopOnce.Do(func() { close(told.stop) })
	}
}
