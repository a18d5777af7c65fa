package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"

	"gavel/front/internal/secure"
)

// orders are the server's orders to the front: `serve` gets the callers' connections, or nil and `err` is set; `stop` is closed.
type orders struct {
	serve    chan *connections
	err      error
	stop     chan struct{}
	stopOnce sync.Once
}

func newOrders() *orders {
	return &orders{serve: make(chan *connections, 1), stop: make(chan struct{})}
}

// takeServe takes the order to serve, which comes once, and returns the connections of callers.
func (orders *orders) takeServe(content []byte, calls *calls) *connections {
	limits, identity, err := decodeServe(content)
	if err != nil {
		orders.err = err
		orders.serve <- nil
		return nil
	}
	connections := newConnections(limits)
	connections.identity, connections.calls = identity, calls
	orders.serve <- connections
	return connections
}

// takeStop takes the order to stop.
func (orders *orders) takeStop() {
	orders.stopOnce.Do(func() { close(orders.stop) })
}

// identity is how the front knows callers, and how the server knows the front.
type identity struct {
	Secret     string           `json:"secret"`   // of this start, for the server's private socket
	IsRequired bool             `json:"required"` // callers need credentials
	TLS        *secure.Material `json:"tls"`      // nil: callers' connections are not encrypted

	certificates *secure.Certificates
}

// decodeServe returns the content of an order to serve (gavel_server/front/orders.py).
func decodeServe(content []byte) (limits, *identity, error) {
	var order struct {
		Limits   json.RawMessage `json:"limits"`
		Identity *identity       `json:"identity"`
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&order); err != nil {
		return limits{}, nil, err
	}
	limits, err := decodeLimits(order.Limits)
	if err != nil {
		return limits, nil, err
	}
	if order.Identity == nil {
		return limits, nil, errors.New("identity is missing")
	}
	if order.Identity.TLS != nil {
		order.Identity.certificates, err = secure.NewCertificates(*order.Identity.TLS)
		order.Identity.TLS = nil
	}
	return limits, order.Identity, err
}

// useTLS takes the certificates of an order. It keeps the previous ones if they cannot be read; the server has checked them.
func (identity *identity) useTLS(content []byte) {
	var material secure.Material
	if identity.certificates != nil && json.Unmarshal(content, &material) == nil {
		identity.certificates.Use(material)
	}
}
