package agent_policy

import future.keywords.every
import future.keywords.in

default CreateContainerRequest := false
default CreateSandboxRequest := false
default ExecProcessRequest := false
default GuestDetailsRequest := true
default ReadStreamRequest := false
default SetPolicyRequest := false

CreateSandboxRequest {
	print("host name:", input.hostname)
	regex.match("^box-[0-9]+$", input.hostname)
}

CreateContainerRequest {
	input.OCI.Annotations["io.example.image"] == "good/image"
	input.OCI.Root.Readonly == false
	is_null(input.OCI.Linux)
	every mount in input.OCI.Mounts {
		mount.type_ == "tmpfs"
	}
	count(input.storages) == 0
}

ExecProcessRequest {
	input.process.Args[0] in ["ls", "cat"]
}
