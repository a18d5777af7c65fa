// Package secure encrypts callers' connections with TLS. The certificates come from the server, also while connections are open.
package secure

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// How long the last bytes of a connection may take.
const leaveTime = time.Second

// Material comes from the server: its certificate, and the authorities of its clients, in PEM (gavel_server/front/orders.py).
type Material struct {
	Certificate       string `json:"certificate"`
	Key               string `json:"key"`
	ClientCA          string `json:"client_ca"` // empty: clients need no certificate
	ClientCertificate string `json:"client_certificate"`
}

// Certificates are the certificates of new connections.
type Certificates struct {
	current atomic.Pointer[tls.Config]
	outer   *tls.Config
}

// NewCertificates returns the certificates of some material.
func NewCertificates(material Material) (*Certificates, error) {
	certificates := &Certificates{}
	if err := certificates.Use(material); err != nil {
		return nil, err
	}
	certificates.outer = &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return certificates.current.Load(), nil },
	}
	return certificates, nil
}

// Use takes other material for new connections. If it returns an error, nothing has changed.
func (certificates *Certificates) Use(material Material) error {
	pair, err := tls.X509KeyPair([]byte(material.Certificate), []byte(material.Key))
	if err != nil {
		return err
	}
	// No session is resumed, so the client's certificate is always verified with the authorities of now: crypto/tls would take the keys of tickets from
	// the outer configuration, which stays the same.
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}, SessionTicketsDisabled: true}
	if material.ClientCA != "" {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM([]byte(material.ClientCA)) {
			return errors.New("the authorities of clients cannot be read")
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
		if material.ClientCertificate == "optional" {
			config.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	certificates.current.Store(config)
	return nil
}

// Server returns the server's side of an encrypted connection. The first read or write shakes hands.
func (certificates *Certificates) Server(raw net.Conn) *Conn {
	return &Conn{Conn: tls.Server(raw, certificates.outer), raw: raw}
}

// Conn is an encrypted connection.
type Conn struct {
	*tls.Conn
	raw      net.Conn
	isShaken atomic.Bool // the client has sent data, so the handshake is over
}

// Read implements io.Reader.
func (conn *Conn) Read(data []byte) (int, error) {
	count, err := conn.Conn.Read(data)
	if count > 0 {
		conn.isShaken.Store(true)
	}
	return count, err
}

// Close closes the connection at once. HTTP/2 has told the caller already; TLS would wait up to 5 s to tell it again.
func (conn *Conn) Close() error {
	return conn.raw.Close()
}

// Leave sends the last bytes of the connection and closes it, without waiting for either. During the handshake it only closes the connection: every
// other function of crypto/tls would wait for the client, for as long as the handshake may take.
func (conn *Conn) Leave(last []byte) {
	if !conn.isShaken.Load() {
		conn.raw.Close()
		return
	}
	go func() {
		conn.raw.SetWriteDeadline(time.Now().Add(leaveTime))
		conn.Conn.Write(last)
		conn.raw.Close()
	}()
}

// PeerCertificates returns the certificates that the client has sent and that were verified, its own first, in DER.
func (conn *Conn) PeerCertificates() [][]byte {
	var all [][]byte
	for _, certificate := range conn.Conn.ConnectionState().PeerCertificates {
		all = append(all, certificate.Raw)
	}
	return all
}
