module tidemark/openslo

go 1.25.5

require github.com/OpenSLO/go-sdk v0.9.2

require (
	github.com/nobl9/govy v0.26.0 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/mod v0.36.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/tools v0.45.0 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)
