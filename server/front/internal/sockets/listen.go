// Package sockets listens on addresses, and reads and writes connections without Go's scheduler where that is faster.
package sockets

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

// UnixPrefix begins the address of a Unix socket.
const UnixPrefix = "unix:"

// How long a listener on a unix socket may take to accept a connection.
const probeTime = time.Second

// Listen binds an address as gavel_server/rpc/transport.py does: HOST:PORT, [IPV6]:PORT or unix:PATH. It returns the address with the
// port that was taken.
func Listen(address string) ([]net.Listener, string, error) {
	var listeners []net.Listener
	var err error
	if path, isUnix := strings.CutPrefix(address, UnixPrefix); isUnix {
		listeners, err = listenOnUnix(strings.TrimPrefix(path, "//"))
	} else {
		listeners, address, err = listenOnTCP(address)
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot listen on %s: another server may be running there, or this machine does not have the address", address)
	}
	return listeners, address, nil
}

// listenOnTCP binds every address of a name, such as both of localhost, to one port. It succeeds if one of them can be bound.
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
		return nil, address, errors.Join(err, errors.New("no address of the host can be bound"))
	}
	return listeners, address[:strings.LastIndexByte(address, ':')+1] + port, nil
}

// listenOnUnix binds a path. It replaces a socket that a killed server left there, and refuses one that a server listens on.
func listenOnUnix(path string) ([]net.Listener, error) {
	if probe, err := net.DialTimeout("unix", path, probeTime); err == nil {
		probe.Close()
		return nil, errors.New("another process listens there")
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
