package agent_policy

import rego.v1

default CreateContainerRequest := {"allowed": false}

default RemoveContainerRequest := {"allowed": false}

default SetPolicyRequest := true

# Two containers at most, each under an id of its own.
CreateContainerRequest := {"allowed": true, "ops": ops} if {
	path := concat("/", ["/pstate", input.container_id])
	not data.pstate[input.container_id]
	count(data.pstate) < 2
	ops := [{"op": "add", "path": path, "value": input.OCI.Annotations["io.example.image"]}]
}

RemoveContainerRequest := {"allowed": true, "ops": ops} if {
	data.pstate[input.container_id]
	ops := [{"op": "remove", "path": concat("/", ["/pstate", input.container_id])}]
}
