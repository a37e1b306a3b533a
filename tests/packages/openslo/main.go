// Validates the OpenSLO objects of standard input with OpenSLO's own SDK.
package main

import (
	"fmt"
	"os"

	"github.com/OpenSLO/go-sdk/pkg/openslosdk"
)

func main() {
	objects, err := openslosdk.Decode(os.Stdin, openslosdk.FormatYAML)
	if err == nil {
		err = openslosdk.Validate(objects...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, object := range objects {
		fmt.Println(object.GetKind(), object.GetName())
	}
}
