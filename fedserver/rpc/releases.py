"""ReleaseService, for operators on the Unix socket and on a port of their own."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedserver.coordinator.release_api import ReleaseApi
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.wire import releases_wire
from fedserver.store.releases import STABLE
from shoal.core.errors import ConfigError
from shoal.core.exchange._pb.fed.v1 import release_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.release_service_pb2_grpc import ReleaseServiceServicer


class Releases(ReleaseServiceServicer):
    def __init__(self, releases: ReleaseApi) -> None:
        self._releases = releases

    async def CreateRelease(
        self, request: pb.CreateReleaseRequest, context: Context
    ) -> pb.CreateReleaseResponse:
        found = await self._releases.create(request.run, request.label)
        return pb.CreateReleaseResponse(release=releases_wire.SUMMARY.to_pb(found))

    async def ListReleases(
        self, request: pb.ListReleasesRequest, context: Context
    ) -> pb.ListReleasesResponse:
        channels = await self._releases.channels()
        return pb.ListReleasesResponse(
            releases=releases_wire.SUMMARY.rows_to_pb(await self._releases.all()),
            channels=[releases_wire.channel_to_pb(*each) for each in channels.items()],
            rollouts=map(releases_wire.ROLLOUT.to_pb, await self._releases.rollouts()),
        )

    async def GetRelease(self, request: pb.GetReleaseRequest, context: Context) -> pb.GetReleaseResponse:
        return releases_wire.WHOLE.to_pb(await self._releases.show(request.release))

    async def UseRelease(self, request: pb.UseReleaseRequest, context: Context) -> pb.UseReleaseResponse:
        name, asked = request.channel or STABLE, (request.release, request.channel)
        if request.HasField("share"):
            margin = request.worse / 100.0 if request.HasField("worse") else None
            moves = await self._releases.try_out(*asked, request.share / 100.0, margin, request.pin)
        elif request.HasField("worse"):
            raise ConfigError("a margin is of a rollout", "give a share, too")
        else:
            moves = await self._releases.use(*asked, request.pin)
        latest = next((each for each in await self._releases.rollouts() if each.channel == name), None)
        going = releases_wire.ROLLOUT.to_pb(latest) if latest and not latest.outcome else None
        return pb.UseReleaseResponse(channel=releases_wire.channel_to_pb(name, moves), rollout=going)

    async def RemoveRelease(
        self, request: pb.RemoveReleaseRequest, context: Context
    ) -> pb.RemoveReleaseResponse:
        await self._releases.remove(request.name)
        return pb.RemoveReleaseResponse()
