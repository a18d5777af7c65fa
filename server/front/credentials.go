package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gavel/front/internal/headers"
	"gavel/front/internal/link"
	"gavel/front/internal/refusals"
	"gavel/front/internal/secure"
)

// Credentials that a connection uses at the same time. A gateway with more callers opens more connections.
const credentialsMax = 64

const expired = "the credentials have expired"

// credential is a credential that a connection has presented: its certificate, or an authorization header. The front asks the server once who
// the caller is, and gets a handle, which stands for the caller from then on. It does not keep the header. The fields are guarded by the mutex
// of connections.
type credential struct {
	connection *connection
	digest     [sha256.Size]byte
	ready      chan struct{}      // closed when the server has answered
	isAsked    bool               // the server has been asked, or is about to be
	ctx        context.Context    // done when the credential has expired or was revoked
	cancel     context.CancelFunc // of ctx
	isOver     bool
	reason     *status.Status // why it is refused, or over
	handle     uint32         // 0: the server has not accepted it
	uses       int            // calls under way
	timer      *time.Timer    // of its expiry
}

// authentication is the content of an AUTHENTICATE frame (gavel_server/front/authentication.py).
type authentication struct {
	Peer           string   `json:"peer"`
	IsEncrypted    bool     `json:"encrypted"`
	Certificates   [][]byte `json:"certificates"`
	Authorizations []string `json:"authorizations"`
	User           *uint32  `json:"user_id"`
}

// noCredential is used where the server asks for none.
var noCredential = &credential{ctx: context.Background()}

// authenticate returns the credential of a call, which the server has accepted, or the error that refuses the call. A call that needs none
// may have one all the same; if the server does not accept it, the call has none. End its use with `release`.
func (call *call) authenticate(ctx context.Context) (*credential, error) {
	table := call.connection.table
	if !table.identity.IsRequired || call.method.IsOpen && !call.hasCredentials() {
		return noCredential, nil
	}
	table.mutex.Lock()
	found, isNew := call.connection.use(digestOf(call.metadata))
	isAccepted := found != nil && found.handle != 0
	table.unlock()
	if isAccepted {
		return found, nil
	}
	if found == nil && call.method.IsOpen {
		return noCredential, nil
	}
	if found == nil {
		message := fmt.Sprintf("the connection uses more than %d credentials at once; open another connection", credentialsMax)
		return nil, refusals.Exhausted(message).Err()
	}
	if isNew {
		go found.ask(authentication{
			Peer:           call.connection.peer,
			IsEncrypted:    call.connection.isEncrypted(),
			Certificates:   call.connection.certificates(),
			Authorizations: call.metadata.Get(headers.AuthorizationKey),
			User:           call.connection.user,
		})
	}
	select {
	case <-found.ready:
	case <-ctx.Done():
		found.release()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	table.mutex.Lock()
	handle, reason := found.handle, found.reason
	table.unlock()
	if handle == 0 || reason != nil {
		found.release()
		if call.method.IsOpen {
			return noCredential, nil
		}
		if method, has := grpc.Method(ctx); has && reason.Code() == codes.Unauthenticated {
			table.calls.link.Send(link.NewFrame(link.Refused, 0, strings.TrimPrefix(method, "/")))
		}
		return nil, reason.Err()
	}
	return found, nil
}

// hasCredentials reports whether the call or its connection presents any.
func (call *call) hasCredentials() bool {
	connection := call.connection
	return len(call.metadata.Get(headers.AuthorizationKey)) > 0 || connection.user != nil || len(connection.certificates()) > 0
}

// use returns the credential of a digest, and whether the server is yet to be asked about it. It returns nil if there are too many.
func (connection *connection) use(digest [sha256.Size]byte) (*credential, bool) {
	found := connection.credentials[digest]
	if found != nil {
		found.uses++
		return found, false
	}
	if len(connection.credentials) >= credentialsMax && !connection.dropUnused() {
		return nil, false
	}
	added := &credential{connection: connection, digest: digest, ready: make(chan struct{}), uses: 1}
	added.ctx, added.cancel = context.WithCancel(context.Background())
	if connection.credentials == nil {
		connection.credentials = map[[sha256.Size]byte]*credential{}
	}
	connection.credentials[digest] = added
	return added, true
}

// dropUnused ends one credential that no call uses, and reports whether there was one.
func (connection *connection) dropUnused() bool {
	for _, credential := range connection.credentials {
		if credential.uses == 0 {
			credential.end(refusals.Unauthenticated(expired))
			return true
		}
	}
	return false
}

// ask asks the server who presents the credential, when its turn comes. It gives up if no call waits for the answer any longer.
func (credential *credential) ask(content authentication) {
	defer close(credential.ready)
	table := credential.connection.table
	turn, err := table.authentications.begin(credential.ctx, credential.connection)
	if err != nil {
		return
	}
	defer turn.end()
	table.mutex.Lock()
	credential.isAsked = true
	isOver := credential.isOver
	table.unlock()
	if isOver {
		return
	}
	encoded, err := json.Marshal(content)
	answers := make(chan answer, 1)
	if err == nil {
		_, err = table.calls.send(link.Authenticate, append(make([]byte, link.HeaderBytes), encoded...), pendingCall{credential: credential, answers: answers})
	}
	if err != nil {
		table.mutex.Lock()
		defer table.unlock()
		credential.end(status.Convert(err))
		return
	}
	<-answers // the server always answers, or this process ends with it
}

// take takes the server's answer. The goroutine that reads the link calls it: REVOKE may follow the answer.
func (credential *credential) take(answered answer) {
	table := credential.connection.table
	table.mutex.Lock()
	defer table.unlock()
	if answered.kind != link.Response || len(answered.content) != link.HandleBytes {
		credential.end(status.Convert(refusals.Decode(answered.content)))
		return
	}
	credential.accept(binary.LittleEndian.Uint32(answered.content), binary.LittleEndian.Uint64(answered.content[4:]))
}

// accept takes the handle that the server has given.
func (credential *credential) accept(handle uint32, remainingMs uint64) {
	table := credential.connection.table
	credential.handle = handle
	table.handles[handle] = credential
	if credential.isOver { // meanwhile: the connection has ended, or uses other credentials
		credential.forget()
		return
	}
	if remainingMs < math.MaxInt64/uint64(time.Millisecond) {
		credential.timer = time.AfterFunc(time.Duration(remainingMs)*time.Millisecond, func() {
			table.mutex.Lock()
			defer table.unlock()
			credential.end(refusals.Unauthenticated(expired))
		})
	}
	if _, isOpen := table.all[credential.connection]; !isOpen {
		credential.end(refusals.Unauthenticated("the connection has ended"))
	}
}

// end lets no further call use the credential, and ends its streams.
func (credential *credential) end(reason *status.Status) {
	if credential.isOver {
		return
	}
	credential.isOver, credential.reason = true, reason
	credential.cancel()
	if credential.connection.credentials[credential.digest] == credential {
		delete(credential.connection.credentials, credential.digest)
	}
	if credential.timer != nil {
		credential.timer.Stop()
	}
	credential.forget()
}

// forget tells the server that the handle is no longer needed, once it is not.
func (credential *credential) forget() {
	if !credential.isOver || credential.uses > 0 || credential.handle == 0 {
		return
	}
	table := credential.connection.table
	delete(table.handles, credential.handle)
	table.calls.link.Send(link.NewFrame(link.Forget, credential.handle, ""))
	credential.handle = 0
}

// release ends a use of the credential.
func (credential *credential) release() {
	if credential.connection == nil {
		return
	}
	table := credential.connection.table
	table.mutex.Lock()
	defer table.unlock()
	credential.uses--
	if credential.uses == 0 && !credential.isAsked {
		credential.end(refusals.Unauthenticated("no call has waited for the server"))
	}
	credential.forget()
}

// revoke ends the credential of a handle, as the server says.
func (connections *connections) revoke(handle uint32, reason string) {
	connections.mutex.Lock()
	defer connections.unlock()
	if credential := connections.handles[handle]; credential != nil {
		credential.end(refusals.Unauthenticated(reason))
	}
}

// isEncrypted reports whether the connection uses TLS.
func (connection *connection) isEncrypted() bool {
	_, isSecure := connection.Conn.(*secure.Conn)
	return isSecure
}

// certificates returns the certificates that the client has presented.
func (connection *connection) certificates() [][]byte {
	if conn, isSecure := connection.Conn.(*secure.Conn); isSecure {
		return conn.PeerCertificates()
	}
	return nil
}

// digestOf returns the digest of a call's credentials beside those of its connection.
func digestOf(all metadata.MD) [sha256.Size]byte {
	authorizations := all.Get(headers.AuthorizationKey)
	switch len(authorizations) {
	case 0:
		return [sha256.Size]byte{}
	case 1:
		return sha256.Sum256([]byte(authorizations[0]))
	}
	return sha256.Sum256([]byte(strings.Join(authorizations, "\x00"))) // refused anyway
}
