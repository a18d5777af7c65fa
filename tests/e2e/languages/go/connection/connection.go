// Package connection opens a channel to a server with what gRPC itself offers: TLS, a client certificate, a token.
package connection

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Options say where the server is and how the caller shows who it is.
type Options struct {
	server, authorities, certificate, key, tokenFile string
}

// Flags defines the options on the command line.
func Flags() *Options {
	options := &Options{}
	flag.StringVar(&options.server, "server", "", "address of the server, host:port")
	flag.StringVar(&options.authorities, "ca", "", "file with the authorities of the server's certificate; without it there is no TLS")
	flag.StringVar(&options.certificate, "cert", "", "file with the client's certificate")
	flag.StringVar(&options.key, "key", "", "file with the key of the client's certificate")
	flag.StringVar(&options.tokenFile, "token-file", "", "file with the client's token")
	return options
}

// Open returns a channel to the server.
func (options *Options) Open() (*grpc.ClientConn, error) {
	if options.authorities == "" {
		return grpc.NewClient(options.server, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	authorities, err := os.ReadFile(options.authorities)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	if !config.RootCAs.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s has no certificate", options.authorities)
	}
	if options.certificate != "" {
		certificate, err := tls.LoadX509KeyPair(options.certificate, options.key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	dial := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if options.tokenFile != "" {
		text, err := os.ReadFile(options.tokenFile)
		if err != nil {
			return nil, err
		}
		dial = append(dial, grpc.WithPerRPCCredentials(token(strings.TrimSpace(string(text)))))
	}
	return grpc.NewClient(options.server, dial...)
}

// token is a bearer token, sent with every call and only over TLS.
type token string

func (text token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(text)}, nil
}

func (token) RequireTransportSecurity() bool { return true }
