package secure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// A connection that is made to leave in the middle of its handshake closes at once, however long the client takes to say hello.
func TestLeavingDuringTheHandshake(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	certificates := &Certificates{outer: &tls.Config{MinVersion: tls.VersionTLS12}}
	conn := certificates.Server(ours)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	if _, err := theirs.Write([]byte{22, 3, 1}); err != nil { // the begin of a record; the handshake waits for the rest
		t.Fatal(err)
	}
	go conn.Leave([]byte("last"))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the handshake has succeeded")
		}
	case <-time.After(20 * time.Second):
		t.Error("the connection stays open")
	}
}

// materialOfTests returns a new certificate that signs itself.
func materialOfTests(t *testing.T) Material {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"front"}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Material{
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})),
		Key:         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
	}
}

// A client that connects again shakes hands anew, in each version of TLS: no session is resumed.
func TestSessionsAreNotResumed(t *testing.T) {
	certificates, err := NewCertificates(materialOfTests(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		config := &tls.Config{ServerName: "front", InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1), MaxVersion: version}
		for range 2 {
			theirs, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			theirs.SetDeadline(time.Now().Add(20 * time.Second))
			ours, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go certificates.Server(ours).Write([]byte{1})
			client := tls.Client(theirs, config)
			if _, err := client.Read(make([]byte, 1)); err != nil { // a ticket would have come before
				t.Fatal(err)
			}
			if client.ConnectionState().DidResume {
				t.Errorf("a session of TLS %x is resumed", version)
			}
			theirs.Close()
		}
	}
}
