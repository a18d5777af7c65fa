package sockets

import (
	"net"
	"syscall"
)

// PeerUser returns the user at the other end of a Unix socket, or nil if the connection is not a Unix socket.
func PeerUser(connection net.Conn) *uint32 {
	unix, ok := connection.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return nil
	}
	var user *uint32
	raw.Control(func(descriptor uintptr) {
		if peer, err := syscall.GetsockoptUcred(int(descriptor), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			user = &peer.Uid
		}
	})
	return user
}
