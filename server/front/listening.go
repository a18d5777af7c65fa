package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

const unixPrefix = "unix:"

// How long somebody who listens on a unix socket may take to show it.
const probeTime = time.Second

// listenOn binds an address as gavel_server/transport.py does: HOST:PORT, [IPV6]:PORT or unix:PATH. It returns the address with the
// port that was really taken.
func listenOn(address string) ([]net.Listener, string, error) {
	var listeners []net.Listener
	var err error
	if path, isUnix := strings.CutPrefix(address, unixPrefix); isUnix {
		listeners, err = listenOnUnix(strings.TrimPrefix(path, "//"))
	} else {
		listeners, address, err = listenOnTCP(address)
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot listen on %s: is another server running there, or is it no address of this machine?", address)
	}
	return listeners, address, nil
}

// listenOnTCP binds every address that a name stands for, such as both of localhost, to one port: one of them is enough.
func listenOnTCP(address string) ([]net.Listener, string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, address, err
	}
	places, err := net.DefaultResolver.LookupIPAddr(context.Background(), host)
	if err != nil {
		return nil, address, err
	}
	var listeners []net.Listener
	for _, place := range places {
		listener, failed := net.Listen("tcp", net.JoinHostPort(place.String(), port))
		if failed != nil {
			err = failed
			continue
		}
		listeners = append(listeners, listener)
		port = strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	}
	if len(listeners) == 0 {
		return nil, address, errors.Join(err, errors.New("no place to listen"))
	}
	return listeners, address[:strings.LastIndexByte(address, ':')+1] + port, nil
}

// listenOnUnix binds a path: a socket that is left over there is replaced, one that is served is somebody else's.
func listenOnUnix(path string) ([]net.Listener, error) {
	if probe, err := net.DialTimeout("unix", path, probeTime); err == nil {
		probe.Close()
		return nil, errors.New("it is served")
	} else if os.IsTimeout(err) {
		return nil, err
	}
	if found, err := os.Lstat(path); err == nil && found.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return []net.Listener{listener}, nil
}

// quickListener makes connections of callers quick ones.
type quickListener struct {
	net.Listener
}

// Accept waits for a caller.
func (listener quickListener) Accept() (net.Conn, error) {
	connection, err := listener.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return quickly(connection), nil
}
