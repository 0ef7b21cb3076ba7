//go:build tools

// Package stack names the servers that `make stack-go` builds; go.mod holds their versions.
package stack

import (
	_ "github.com/oxia-db/oxia/cmd"
	_ "go.etcd.io/etcd/server/v3"
)
